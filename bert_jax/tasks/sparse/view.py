"""What the report of a sparse encoder shows: pieces of queries and passages, and their matches."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from bert_jax.inference.comparison import SparseVector
from bert_jax.report.finetuning.pieces import (
    PASSAGES,
    QUERIES,
    FoundPassage,
    WeightedText,
    pieces_view,
)
from bert_jax.report.rendering import View
from bert_jax.tasks.family import Record, Split
from bert_jax.tasks.search.retrieval import RetrievalSplit
from bert_jax.tasks.search.sample import SampledRows
from bert_jax.tasks.search.tuples import TextsSplit, spread


class _Text(NamedTuple):
    """A text of a split."""

    text: str
    row: int
    place: int = 0  # among the texts of the row


def view_of_pieces(
    split: Split, records: Sequence[Record], predict: Callable[[Split], list[Record]]
) -> View:
    """Returns the pieces of some queries and of their best passages, see `Family.view`."""
    assert isinstance(split, TextsSplit)
    found = [(at, _best(split, records[at], at)) for at in spread(len(records), QUERIES)]
    used = {text.row for _, passages in found for text, *_ in passages}
    rows = sorted(used.union(at for at, _ in found))
    vectors = dict(zip(rows, predict(SampledRows(split, rows)), strict=True))

    def weighted(text: _Text) -> WeightedText:
        vector: SparseVector = vectors[text.row]["vectors"][text.place]
        pieces = split.tokenizer.pieces(vector.indices.tolist())
        return WeightedText(text.text, dict(zip(pieces, vector.data.tolist(), strict=True)))

    return pieces_view(
        [
            (
                weighted(_Text(records[at]["text"], at)),
                [FoundPassage(weighted(text), score, grade) for text, score, grade in passages],
            )
            for at, passages in found
        ]
    )


def _best(split: TextsSplit, record: Record, at: int) -> list[tuple[_Text, float, float | None]]:
    """Returns the best passages of a query with scores and grades, or the passage of a pair."""
    if not isinstance(split, RetrievalSplit):
        return [(_Text(record["pair"], at, 1), record["prediction"], record["label"])]
    rows = {name: row for row, name in enumerate(split.data.passages, start=split.examples)}
    best = zip(record["prediction"][:PASSAGES], record["scores"], strict=False)
    return [
        (_Text(split.data.passages[name], rows[name]), score, record["label"].get(name))
        for name, score in best
    ]
