"""Divides texts into tokens, and finds the place of each token in its text."""

import unicodedata
from collections.abc import Sequence
from typing import Final

from bert_jax.tasks.tokens.conll import Sentence
from bert_jax.text.basic_tokenizer import is_chinese, is_punctuation

_INVISIBLE: Final = ("Cc", "Cf")


def split_text(text: str, *, punctuation: bool) -> list[str]:
    """Splits a text at blanks and, if `punctuation` is set, around punctuation and ideographs.

    ``"(Dr. Ito)"`` → ``["(", "Dr", ".", "Ito", ")"]``. These are the words of BERT's tokenizer. A
    token of invisible characters alone is left out.
    """
    if punctuation:
        text = "".join(
            f" {each} " if is_punctuation(each) or is_chinese(each) else each for each in text
        )
    return [word for word in text.split() if not all(map(_is_invisible, word))]


def _is_invisible(character: str) -> bool:
    return unicodedata.category(character) in _INVISIBLE


def splits_punctuation(sentences: Sequence[Sentence]) -> bool:
    """Returns whether sentences have punctuation as tokens, or none at the ends of words."""
    tokens = {token for sentence in sentences for token in sentence.tokens}
    if any(len(token) == 1 and is_punctuation(token) for token in tokens):
        return True
    return not any(len(token) > 1 and token[-1] in ".,;:!?" for token in tokens)


def place_tokens(sentence: Sentence) -> tuple[str, list[tuple[int, int]]]:
    """Returns the text of a sentence, and the start and end of each token in it.

    Without a text, the tokens are joined with a space: ``["Dr", "Ito"]`` → ``"Dr Ito"``, (0, 2),
    (3, 6).
    """
    text, spans, end = sentence.whole_text, [], 0
    for at, token in enumerate(sentence.tokens):
        start = end + (at > 0) if text is None else text.index(token, end)
        end = start + len(token)
        spans.append((start, end))
    return " ".join(sentence.tokens) if text is None else text, spans
