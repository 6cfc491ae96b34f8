"""Figures of a split that its examples do not show: documents of pairs, repeated sentences."""

from collections.abc import Iterable
from typing import Final

import numpy as np

from bert_jax.data.dataset.provenance import PairsRecord
from bert_jax.data.rng import mix64
from bert_jax.pipelines.tokenised.documents import TokenisedDocuments

SKETCH: Final = 1 << 14
"""Hashes in a sketch: the number of different sentences is off by 1 / sqrt(SKETCH) = 0.8%."""

_CHUNK: Final = 4096  # sentences at a time


def count_pairs(documents: TokenisedDocuments, pairs: np.ndarray) -> PairsRecord:
    """Counts pairs, ``[n, 5]`` int64 as :class:`Pair` has them, by the documents of their spans."""
    starts = documents.sentence_starts[documents.document_starts]
    first, second = (np.searchsorted(starts, pairs[:, at], side="right") for at in (0, 2))
    same, label = first == second, pairs[:, 4] == 1
    return PairsRecord(
        same_document=(int((same & ~label).sum()), int((same & label).sum())),
        other_document=(int((~same & ~label).sum()), int((~same & label).sum())),
    )


def add_pairs(records: Iterable[PairsRecord | None]) -> PairsRecord | None:
    """Adds counts up; ``None`` if there are none."""
    held = [(*r.same_document, *r.other_document) for r in records if r is not None]
    if not held:
        return None
    same_0, same_1, other_0, other_1 = map(sum, zip(*held, strict=True))
    return PairsRecord(same_document=(same_0, same_1), other_document=(other_0, other_1))


def sentence_hashes(documents: TokenisedDocuments) -> np.ndarray:
    """Returns a hash of every sentence, ``[s]`` uint64, of its tokens in order."""
    starts, total = documents.sentence_starts, len(documents.sentence_starts) - 1
    parts = [np.zeros(0, np.uint64)]
    for first in range(0, total, _CHUNK):
        held = starts[first : first + _CHUNK + 1]
        places = np.arange(held[0], held[-1])
        places -= np.repeat(held[:-1], np.diff(held))
        spelled = (places.astype(np.uint64) << np.uint64(32)) + documents.tokens[held[0] : held[-1]]
        parts.append(mix64(np.add.reduceat(mix64(spelled), held[:-1] - held[0])))
    return np.concatenate(parts)


def sketch(hashes: np.ndarray) -> np.ndarray:
    """Returns the smallest distinct hashes, ascending; sketches may be joined and sketched again.

    Source: Bar-Yossef et al., "Counting distinct elements in a data stream" (2002).
    """
    return np.unique(hashes)[:SKETCH]


def count_distinct(smallest: np.ndarray) -> float:
    """Returns the number of distinct hashes: exact below `SKETCH`, else an estimate."""
    if len(smallest) < SKETCH:
        return float(len(smallest))
    return (SKETCH - 1) / (float(smallest[-1]) / 2.0**64)
