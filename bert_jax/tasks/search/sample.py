"""What reports show of texts: neighbours of vectors, and matches of token vectors."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from bert_jax.inference.comparison import TokenComparison
from bert_jax.report.finetuning.embeddings import SamplePair, VectorSample, embeddings
from bert_jax.report.finetuning.rankings import TokenText, matches_view
from bert_jax.report.rendering import View
from bert_jax.tasks.family import Encoded, Record, Split
from bert_jax.tasks.search.tuples import TextsSplit

SAMPLED: Final = 1000  # texts of a sample
_QUERIES: Final = 8  # queries whose matches are shown
_PASSAGES: Final = 3  # passages shown of a query


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


def view_of_matches(
    split: Split, records: Sequence[Record], predict: Callable[[Split], list[Record]]
) -> View:
    """Returns the best passages of some queries, and which tokens match, see `Family.view`."""
    assert isinstance(split, TextsSplit)
    chosen = split.shown(records, queries=_QUERIES, passages=_PASSAGES)
    rows = sorted({row for each in chosen for row in each.rows})
    found = dict(zip(rows, predict(SampledRows(split, rows)), strict=True))

    def tokens(row: int) -> list[TokenText]:
        texts = enumerate(zip(split.row(row).sequences, found[row]["vectors"], strict=True))
        return [
            TokenText(_pieces(split, ids, query=split.is_query(row, text)), vectors)
            for text, (ids, vectors) in texts
        ]

    return matches_view(
        [(each, [text for row in each.rows for text in tokens(row)]) for each in chosen]
    )


def _pieces(split: TextsSplit, ids: Sequence[int], *, query: bool) -> list[str]:
    """Returns the pieces of a text that have a vector."""
    assert isinstance(split.comparison, TokenComparison)
    kept = (ids[at] for at in split.comparison.positions(ids, query=query))
    return split.tokenizer.pieces([max(each, ~each) for each in kept])  # see `fill_up`
