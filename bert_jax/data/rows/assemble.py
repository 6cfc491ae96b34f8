"""BERT's input from one or two token sequences."""

from collections.abc import Sequence
from typing import NamedTuple

from bert_jax.text.vocabulary import SpecialIds


class Assembled(NamedTuple):
    """``[CLS] A [SEP]`` or ``[CLS] A [SEP] B [SEP]``, unpadded."""

    ids: list[int]
    second: int  # index of B's first token; the length if there is no B
    cut: bool  # whether tokens were dropped


def assemble(
    first: Sequence[int], second: Sequence[int] | None, special: SpecialIds, *, max_length: int
) -> Assembled:
    """Joins token sequences; the longer of two loses its last token until both fit.

    ``assemble([7, 8], [9], special, max_length=8)`` → ``[CLS] 7 8 [SEP] 9 [SEP]``, second = 4

    ``max_length`` counts special tokens too. Source: `_truncate_seq_pair` in google-research/bert
    `run_classifier.py`.
    """
    others = [] if second is None else list(second)
    room = max_length - (2 if second is None else 3)
    keep_first = max(room - len(others), min(len(first), -(-room // 2)))
    keep_first = min(keep_first, len(first), room)
    keep_second = min(len(others), room - keep_first)
    cut = keep_first < len(first) or keep_second < len(others)
    ids = [special.cls, *first[:keep_first], special.sep]
    start = len(ids)
    if second is not None:
        ids += [*others[:keep_second], special.sep]
    return Assembled(ids, start, cut)
