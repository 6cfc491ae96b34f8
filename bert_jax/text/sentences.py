"""Splits prose into sentences with the ``sentencex`` library."""

import re
from typing import Final

from bert_jax.errors import UserError

# Language codes are checked here: sentencex accepts any string, even "english" or "En", and uses
# English rules for unknown languages.
_LANGUAGE: Final = re.compile(r"[a-z]{2,3}(-[a-z]{2,8})*")


def split_sentences(text: str, *, language: str) -> list[str]:
    """Splits a paragraph: ``"Dr. Smith came. He left." -> ["Dr. Smith came.", "He left."]``.

    A line end always ends a sentence. Sentences are in order and not empty. Only the white space
    around sentences is dropped.
    """
    # Imported late: configurations import this module, but only the extra `data` has sentencex.
    import sentencex

    sentences = (sentence.strip() for sentence in sentencex.segment(language, text))  # pyright: ignore[reportAttributeAccessIssue]
    return [sentence for sentence in sentences if sentence]


def check_language(language: str, *, key: str = "language") -> str:
    """Returns ``language`` if it has the form of an ISO 639 code: ``"en"``, ``"zh"``, ``"yue"``.

    If sentencex has no rules for the language, it uses rules of a related language or of English.
    Raises UserError at the setting ``key`` if ``language`` has another form.
    """
    if not _LANGUAGE.fullmatch(language):
        raise UserError(
            "language.code",
            f'found "{language}", allowed: a lower-case ISO 639 code, such as "en", "de" or "zh"',
            place=key,
        )
    return language
