"""Rows of queries with candidates, for training and for predictions, and their rankings."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from bert_jax.data.rows.collate import (
    Assembled,
    assemble_longest_first,
    encode_ragged,
    special_tokens,
)
from bert_jax.model.text_head import CrossEncoderSection
from bert_jax.tasks.family import Encoded, Record, Split, content_hash
from bert_jax.tasks.rerank.candidates import Candidates, grouped
from bert_jax.text.tokenizer import Tokenizer

LABELS: Final = "labels"  # float32 [candidates]: target of a row, and key of a batch


class PairsSplit(Split):
    """Queries with candidates. Each query with each candidate is a pair of texts."""

    def __init__(
        self,
        lists: Sequence[Candidates],
        *,
        head: CrossEncoderSection,
        tokenizer: Tokenizer,
        max_length: int,
    ) -> None:
        """Encodes all texts. Equal documents are encoded once."""
        self.lists, self._head, self._tokenizer = lists, head, tokenizer
        self._max_length, self.examples = max_length, len(lists)
        self.fingerprint = content_hash([*lists, _Prefix(head.query_prefix)])
        self._queries = encode_ragged(tokenizer, (head.query_prefix + each.query for each in lists))
        numbers: dict[str, int] = {}
        texts = [text for each in lists for text in each.documents.values()]
        self._numbers = np.asarray([numbers.setdefault(text, len(numbers)) for text in texts])
        self._documents = encode_ragged(tokenizer, numbers)
        counts = np.asarray([len(each.documents) for each in lists])
        self._ends = np.cumsum(counts)  # end of each query's pairs among all pairs
        self._of_pair = np.repeat(np.arange(len(lists)), counts)
        pieces = np.diff(self._documents.offsets)[self._numbers]
        pieces += np.diff(self._queries.offsets)[self._of_pair]
        pieces += special_tokens(tokenizer, pair=True)
        self._pair_lengths = np.minimum(pieces, max_length).astype(np.int32)
        cut = int((pieces > max_length).sum())
        of_all = f"of {len(pieces):,} pairs are longer than {max_length} pieces and truncated"
        self.findings: Mapping[str, int] = {of_all: cut}

    def _pair(self, at: int) -> Assembled:
        first = self._queries[self._of_pair[at]].tolist()
        second = self._documents[self._numbers[at]].tolist()
        return assemble_longest_first(first, second, self._tokenizer, max_length=self._max_length)


class _Prefix(NamedTuple):
    text: str


class ListSplit(PairsSplit):
    """Rows for training: a query with all of its candidates."""

    def __init__(self, lists: Sequence[Candidates], **parts: Any) -> None:
        """Encodes all texts, see `PairsSplit`."""
        super().__init__(lists, **parts)
        self.lengths = np.maximum.reduceat(self._pair_lengths, np.append(0, self._ends[:-1]))
        self.width = max(len(each.documents) for each in lists)

    def row(self, index: int) -> Encoded:
        """Returns a sequence per candidate. Sequences of missing candidates are empty."""
        labels = self.lists[index].labels
        end, missing = int(self._ends[index]), self.width - len(labels)
        pairs = [self._pair(at) for at in range(end - len(labels), end)]
        return Encoded(
            [*(pair.ids for pair in pairs), *[[]] * missing],
            [*(pair.second for pair in pairs), *[0] * missing],
            {LABELS: np.asarray(labels + [0.0] * missing, np.float32)},
        )


class RankingSplit(PairsSplit):
    """Rows for predictions: a query with one candidate each.

    The record of a query has its candidates by falling score. If every query has one candidate, the
    prediction is its score.
    """

    def __init__(self, lists: Sequence[Candidates], **parts: Any) -> None:
        """Encodes all texts, see `PairsSplit`."""
        super().__init__(lists, **parts)
        self.lengths = self._pair_lengths

    @property
    def undecided(self) -> bool:
        """Whether every model has the same score, because no query has a choice."""
        return all(len({*each.labels}) < 2 for each in self.lists)

    def row(self, index: int) -> Encoded:
        """Returns one pair, without a target."""
        pair = self._pair(index)
        return Encoded((pair.ids,), (pair.second,), {})

    def reduce(self, index: int, logits: np.ndarray) -> float:
        """Returns the score of a pair."""
        del index
        return float(self._head.score(logits)[0])

    def starts_example(self, row: int) -> bool:
        """Returns whether a row is the first pair of a query."""
        return row == 0 or self._of_pair[row] != self._of_pair[row - 1]

    def records(self, reduced: Sequence[float], *, first: int = 0) -> list[Record]:
        """Returns the records of whole queries, see the class."""
        start = int(self._of_pair[first])
        end = int(self._of_pair[first + len(reduced) - 1]) + 1
        lists, ends = self.lists[start:end], self._ends[start:end] - first
        if len(self._numbers) > len(self.lists):
            return [
                ranked(each, reduced[stop - len(each.documents) : stop])
                for each, stop in zip(lists, ends, strict=True)
            ]
        return [
            {
                "id": each.id,
                "text": each.query,
                "pair": next(iter(each.documents.values())),
                "label": each.grades and each.labels[0],
                "prediction": score,
            }
            for each, score in zip(lists, reduced, strict=True)
        ]


def ranked(candidates: Candidates, scores: Sequence[float]) -> Record:
    """Returns the record of a query, see `bert_jax.tasks.search.retrieval.rank`.

    Of documents with equal scores, the larger id comes first, as in trec_eval.
    """
    order = sorted(zip(scores, candidates.documents, strict=True), reverse=True)
    grades = candidates.grades or {}
    return {
        "id": candidates.id,
        "text": candidates.query,
        "label": candidates.grades and dict(candidates.grades),
        "prediction": [name for _, name in order],
        "scores": [score for score, _ in order],
        "ranks": {
            name: place for place, (_, name) in enumerate(order, start=1) if grades.get(name, 0) > 0
        },
    }


def rankings(records: Sequence[Record]) -> list[Record]:
    """Returns the records of queries. Joins the records of single pairs with equal queries."""
    if "ranks" in records[0]:
        return list(records)
    pairs = [(each["text"], each["pair"], each["label"], each["prediction"]) for each in records]
    scores = {(query, document): score for query, document, _, score in pairs}
    rows = (
        Candidates(query, query, {document: document}, {document: label}, at)
        for at, (query, document, label, _) in enumerate(pairs)
    )
    return [
        ranked(each, [scores[each.query, document] for document in each.documents])
        for each in grouped(rows)
    ]


def by_id(records: Sequence[Record]) -> list[Record]:
    """Returns rankings in the order of equal scores: the larger id comes first."""
    lists = rankings(records)
    orders = [sorted(each["prediction"], reverse=True) for each in lists]
    return [
        each
        | {"prediction": order, "ranks": {name: order.index(name) + 1 for name in each["ranks"]}}
        for each, order in zip(lists, orders, strict=True)
    ]
