"""Vectors of a sample of texts, for the report."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from bert_jax.report.finetuning.embeddings import SamplePair, VectorSample
from bert_jax.tasks.embedding.tuples import TextsSplit
from bert_jax.tasks.family import Encoded, Record, Split
from bert_jax.tasks.predictor import Predictor

SAMPLED: Final = 1000  # texts of a sample


class _SampledRows(Split):
    """Some rows of a split. Their records are their vectors."""

    def __init__(self, split: TextsSplit, rows: Sequence[int]) -> None:
        self._split, self._rows = split, rows
        self.lengths, self.examples = split.lengths[list(rows)], len(rows)

    def row(self, index: int) -> Encoded:
        return self._split.row(self._rows[index])

    def reduce(self, index: int, logits: np.ndarray) -> np.ndarray:
        return TextsSplit.reduce(self._split, index, logits)

    def records(self, reduced: Sequence[np.ndarray]) -> list[Record]:
        return [{"vectors": vectors} for vectors in reduced]


def sampled_vectors(split: Split, predictor: Predictor, params: Any) -> VectorSample:
    """Returns texts of a split and their vectors. All processes must call it."""
    assert isinstance(split, TextsSplit)
    sample = split.sample(SAMPLED)
    records = predictor(params, _SampledRows(split, sample.rows))
    vectors = np.concatenate([np.atleast_2d(record["vectors"]) for record in records])
    pairs = [SamplePair(*pair) for pair in sample.pairs]
    return VectorSample(sample.texts, vectors, pairs, sample.total)
