"""The answer of a question as characters of its context, and as pieces."""

from __future__ import annotations

import re

import numpy as np

from bert_jax.tasks.squad.file import Answer
from bert_jax.tasks.squad.offsets import OffsetPieces


def find_answer(context: str, answer: Answer) -> tuple[int, int] | None:
    """Returns the place of an answer: its first character and one behind the last.

    It is where the file says, or else within the words that the file's place touches, white space
    not counted (`run_squad.py`, `read_squad_examples`); never elsewhere, even where the text
    occurs.

    Args:
        context: the paragraph.
        answer: with the place the file names.

    Returns:
        None if it is not there.
    """
    start, end = answer.start, answer.start + len(answer.text)
    words = answer.text.split()
    if not words or start < 0 or end > len(context):
        return None
    if context[start:end] == answer.text:
        start += len(answer.text) - len(answer.text.lstrip())
        return start, start + len(answer.text.strip())
    while start and context[start].isspace():
        start -= 1
    while start and not context[start - 1].isspace():
        start -= 1
    while end < len(context) and not context[end - 1].isspace() and not context[end].isspace():
        end += 1
    found = re.compile(r"\s+".join(map(re.escape, words))).search(context, start, end)
    return found.span() if found else None


def answer_pieces(pieces: OffsetPieces, start: int, end: int) -> tuple[int, int] | None:
    """Returns the first and last of the pieces that characters `start` to `end` touch.

    Args:
        pieces: of the context.
        start: first character.
        end: one behind the last.

    Returns:
        None if there is no piece there, as for characters that the tokenizer drops.
    """
    first = int(np.searchsorted(pieces.ends, start, side="right"))
    last = int(np.searchsorted(pieces.starts, end, side="left")) - 1
    return (first, last) if first <= last else None
