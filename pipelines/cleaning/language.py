"""A function of the user's that says which documents to keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from bert_jax.errors import UserError

# The setting that names the function.
KEY: Final = "cleaning.language_filter"


def keeps(
    function: Callable[[str], Any], text: str, *, languages: Sequence[str], identity: str
) -> bool:
    """Whether a document's language is one to keep.

    Args:
        function: returns True, False or a language code.
        text: of the document.
        languages: codes to keep.
        identity: the document's id, for messages.

    Raises:
        UserError: the function raises, or returns something else, or a code while there are no
            codes to keep.
    """
    try:
        answer = function(text)
    except Exception as error:
        raise UserError(
            f"cleaning.language_filter: {type(error).__name__} on {identity}: {error}"
        ) from error
    if isinstance(answer, bool):
        return answer
    if not isinstance(answer, str):
        raise UserError(
            f"cleaning.language_filter: found {answer!r:.60} for {identity}, allowed: True, False "
            "or a language code"
        )
    if not languages:
        raise UserError(
            f'cleaning.languages: empty, but the filter returns codes, "{answer}" for {identity}; '
            "name those to keep"
        )
    return answer in languages
