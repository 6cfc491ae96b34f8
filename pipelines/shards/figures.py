"""Figures of a split that cannot be read off its examples, counted while they are made."""

import array
from collections.abc import Iterable
from typing import Final

import numpy as np

from bert_jax.data.dataset.provenance import PairsRecord
from bert_jax.data.rng import mix64
from bert_jax.pipelines.pairing.spans import Pair
from bert_jax.pipelines.tokenised.documents import TokenisedDocuments

SKETCH: Final = 1 << 14
"""Hashes in a sketch: the number of different sentences is off by 1 / sqrt(SKETCH) = 0.8%."""

_CHUNK: Final = 4096  # sentences at a time


class PairTally:
    """Counts whether the spans of pairs are of one document, by label."""

    def __init__(self, documents: TokenisedDocuments) -> None:
        self._starts = documents.sentence_starts[documents.document_starts]
        self._first, self._second = array.array("q"), array.array("q")
        self._labels = array.array("b")

    def add(self, pair: Pair) -> None:
        """Counts one pair."""
        self._first.append(pair.first_start)
        self._second.append(pair.second_start)
        self._labels.append(pair.next_sentence_label)

    def record(self) -> PairsRecord:
        """Returns the counts."""
        homes = [
            np.searchsorted(self._starts, np.asarray(spans), side="right")
            for spans in (self._first, self._second)
        ]
        same, label = homes[0] == homes[1], np.asarray(self._labels) == 1
        return PairsRecord(
            same_document=(int((same & ~label).sum()), int((same & label).sum())),
            other_document=(int((~same & ~label).sum()), int((~same & label).sum())),
        )


def add_pairs(records: Iterable[PairsRecord | None]) -> PairsRecord | None:
    """Adds counts up; ``None`` if there are none."""
    held = [record for record in records if record is not None]
    if not held:
        return None
    same = np.sum([record.same_document for record in held], axis=0)
    other = np.sum([record.other_document for record in held], axis=0)
    return PairsRecord(
        same_document=(int(same[0]), int(same[1])), other_document=(int(other[0]), int(other[1]))
    )


def sentence_hashes(documents: TokenisedDocuments) -> np.ndarray:
    """Returns a hash of every sentence, uint64: equal where all tokens are."""
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
    """Returns the smallest distinct hashes, ascending; of joined sketches, the sketch of all.

    Source: Bar-Yossef et al., "Counting distinct elements in a data stream" (2002).
    """
    return np.unique(hashes)[:SKETCH]


def count_distinct(smallest: np.ndarray) -> float:
    """Returns the number of distinct hashes: exact below `SKETCH`, else an estimate."""
    if len(smallest) < SKETCH:
        return float(len(smallest))
    return (SKETCH - 1) / (float(smallest[-1]) / 2.0**64)
