"""The rules that look at one document at a time."""

import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, Final

from bert_jax.errors import UserError
from bert_jax.pipelines.cleaning.boilerplate import prose_lines
from bert_jax.pipelines.cleaning.contamination import load_index
from bert_jax.pipelines.cleaning.settings import CleaningSection
from bert_jax.pipelines.cleaning.tally import Tally
from bert_jax.user_function import load_function

LANGUAGE_FILTER: Final = "cleaning.language_filter"


class DocumentRules:
    """Applies the rules that are on, in the order of the settings."""

    def __init__(self, section: CleaningSection, *, overlap_index: str | None) -> None:
        """Prepares the rules.

        Raises:
            UserError: the language filter cannot be imported.
        """
        self._section = section
        filter_name = section.language_filter
        self._filter = (
            None
            if filter_name is None
            else load_function(filter_name, key=LANGUAGE_FILTER, checked=True)
        )
        self._index = None if overlap_index is None else load_index(overlap_index)

    def apply(self, lines: list[str], *, identity: str, tally: Tally) -> list[str]:
        """Returns what is left of a document's lines; nothing if the document is dropped."""
        section = self._section
        if section.unicode is not None:
            form = "NFC" if section.unicode == "nfc" else "NFKC"
            normal = (unicodedata.normalize(form, line).strip() for line in lines)
            lines = [line for line in normal if line]
        if section.boilerplate is not None and lines:
            prose = prose_lines(lines, section.boilerplate, tally=tally)
            if prose is None:
                return []
            lines = prose
        if section.duplicate_lines != "keep":
            unique = list(dict.fromkeys(lines))
            if len(unique) < len(lines):
                tally.lines["duplicate_lines.document"] += len(lines) - len(unique)
            lines = unique
        if not lines:
            tally.documents["emptied"] += 1
            return []
        if self._filter is not None and not _keeps(
            self._filter, "\n".join(lines), languages=section.languages, identity=identity
        ):
            tally.documents["language_filter"] += 1
            return []
        if self._index is not None and section.contamination is not None:
            contaminated = self._index.check("\n".join(lines), identity=identity, tally=tally)
            if contaminated and section.contamination.on_contaminated == "drop":
                tally.documents["contamination"] += 1
                return []
        return lines


def _keeps(
    function: Callable[[str], Any], text: str, *, languages: Sequence[str], identity: str
) -> bool:
    """Whether the user's filter keeps a document: it says True, False or a language code.

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
