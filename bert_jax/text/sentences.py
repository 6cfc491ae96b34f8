"""Sentences of free prose, split by the ``sentencex`` library."""

import re
from typing import Final

from bert_jax.errors import UserError

# sentencex takes any string for a language and falls back to English, also for "english" or "En".
_LANGUAGE: Final = re.compile(r"[a-z]{2,3}(-[a-z]{2,8})*")


def split_sentences(text: str, *, language: str) -> list[str]:
    """Splits a paragraph: ``"Dr. Smith came. He left." -> ["Dr. Smith came.", "He left."]``.

    Line ends within a paragraph end a sentence. Sentences come in order without the white space
    around them; none is empty. Together they hold every character of ``text`` that is not white
    space.
    """
    import sentencex  # of the extra `data`; every configuration imports this module

    sentences = (sentence.strip() for sentence in sentencex.segment(language, text))  # pyright: ignore[reportAttributeAccessIssue]
    return [sentence for sentence in sentences if sentence]


def check_language(language: str, *, key: str = "language") -> str:
    """Returns ``language`` if it is spelled like an ISO 639 code: ``"en"``, ``"zh"``, ``"yue"``.

    A code without rules of its own is split by its nearest relative's, in the end by English's:
    that is the library's table. Raises UserError: it is not spelled like a code; names ``key``, the
    setting.
    """
    if not _LANGUAGE.fullmatch(language):
        raise UserError(
            "language.code",
            'found "{found}", allowed: a lower-case ISO 639 code, such as "en", "de" or "zh"',
            place=key,
            found=language,
        )
    return language
