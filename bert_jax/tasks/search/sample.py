"""The sample of texts in the report of sentence embeddings."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from bert_jax.report.finetuning.embeddings import SamplePair, VectorSample, embeddings
from bert_jax.report.rendering import View
from bert_jax.tasks.family import Encoded, Record, Split
from bert_jax.tasks.search.tuples import TextsSplit

SAMPLED: Final = 1000  # texts of a sample


class SampledRows(Split):
    """Some rows of a split. Their records are their vectors."""

    def __init__(self, split: TextsSplit, rows: Sequence[int]) -> None:
        self._split, self._rows = split, rows
        self.lengths, self.examples = split.lengths[list(rows)], len(rows)

    def row(self, index: int) -> Encoded:
        """Returns a row of the split."""
        return self._split.row(self._rows[index])

    def reduce(self, index: int, logits: np.ndarray) -> list[Any]:
        """Returns what `Comparison.kept` keeps of the outputs of a row's texts."""
        return TextsSplit.reduce(self._split, self._rows[index], logits)

    def records(self, reduced: Sequence[list[Any]], *, first: int = 0) -> list[Record]:
        """Returns a record with the vectors of each row."""
        del first
        return [{"vectors": vectors} for vectors in reduced]


def view_of_sample(
    split: Split, records: Sequence[Record], predict: Callable[[Split], list[Record]]
) -> View:
    """Returns the neighbours and the map of texts of a split, see `Family.view`."""
    del records
    assert isinstance(split, TextsSplit)
    sample = split.sample(SAMPLED)
    found = predict(SampledRows(split, sample.rows))
    vectors = np.stack([vector for record in found for vector in record["vectors"]])
    pairs = [SamplePair(*pair) for pair in sample.pairs]
    return embeddings(VectorSample(sample.texts, vectors, pairs, sample.total))
