"""Counts of a part's results for the report: labels, histogram, rows near the threshold."""

import collections
import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from bert_jax.corpus.keep import Condition, Threshold
from bert_jax.corpus.results import LABEL, PROBABILITIES, SCORE, TAGS

BIN: Final = 0.05  # least width of a histogram's bins
NEAREST: Final = 5  # rows near the threshold
_SHOWN_CHARACTERS: Final = 200
_MOST_LABELS: Final = 1000
_MOST_BINS: Final = 128


class Histogram(NamedTuple):
    """Counts of values in bins of equal width.

    Attributes:
        doublings: the width of a bin is `BIN` · 2^doublings.
        counts: number of values by ``floor(value / width)``, ascending.
    """

    doublings: int = 0
    counts: Mapping[int, int] = {}

    @classmethod
    def of(cls, values: np.ndarray) -> "Histogram":
        """Counts finite float32 values in bins of the least width."""
        bins, counts = np.unique(np.floor(values * np.float32(1 / BIN)), return_counts=True)
        return cls(0, dict(zip(map(int, bins.tolist()), counts.tolist(), strict=True)))

    @classmethod
    def sum(cls, parts: Sequence["Histogram"]) -> "Histogram":
        """Adds up histograms. Doubles the width until they span at most `_MOST_BINS` bins."""
        doublings = max((each.doublings for each in parts), default=0)
        while True:
            counts: collections.Counter[int] = collections.Counter()
            for each in parts:
                for at, count in each.counts.items():
                    counts[at >> (doublings - each.doublings)] += count
            if not counts or max(counts) - min(counts) < _MOST_BINS:
                return cls(doublings, dict(sorted(counts.items())))
            doublings += 1


def value_column(names: Collection[str], threshold: Threshold | None) -> tuple[str, ...] | None:
    """Returns the column of the histogram, or None for results without scores.

    It is the threshold's column, or the score, or else ``("probabilities",)``: the highest
    probability of a row. `names` are the columns of the result.
    """
    if threshold is not None and threshold.column[0] in {SCORE, PROBABILITIES} & {*names}:
        return threshold.column
    return next(((name,) for name in (SCORE, PROBABILITIES) if name in names), None)


class NearRow(NamedTuple):
    """A row whose value is near the threshold of the condition."""

    distance: float
    id: str
    value: float
    text: str


class PartSummary:
    """Adds up the results of tables."""

    def __init__(self, condition: Condition | None, *, results: Collection[str]) -> None:
        """`results` are the names of the result's columns, among others of a table."""
        self._threshold = None if condition is None else condition.threshold
        self._results, self._shown = results, value_column(results, self._threshold)
        self._labels: collections.Counter[str] = collections.Counter()
        self._histogram = Histogram()
        self._near: list[NearRow] = []

    def add(self, table: pa.Table, texts: Sequence[Any]) -> None:
        """Adds the rows of a table, before rows are dropped."""
        for name in {LABEL, TAGS} & {*self._results}:
            labels = table.column(name).combine_chunks()
            flat = labels.flatten() if pa.types.is_list(labels.type) else labels
            for each in flat.value_counts().to_pylist():
                self._labels[str(each["values"])] += each["counts"]
        if self._shown is not None:
            self._histogram = Histogram.sum([self._histogram, self._values(table)])
        if self._threshold is not None:
            self._add_near(table, texts)

    def _values(self, table: pa.Table) -> Histogram:
        assert self._shown is not None
        name, *fields = self._shown
        column = table.column(name).combine_chunks()
        if name == SCORE:
            return Histogram.of(column.to_numpy())
        columns = [column.field(field) for field in fields] or column.flatten()
        highest = np.max([each.to_numpy() for each in columns], axis=0)
        return Histogram.of(np.minimum(highest, np.nextafter(np.float32(1), np.float32(0))))

    def _add_near(self, table: pa.Table, texts: Sequence[Any]) -> None:
        assert self._threshold is not None
        (name, *fields), value = self._threshold
        column = table.column(name).combine_chunks()
        column = column.field(fields[0]) if fields else column
        found = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        distance = np.abs(found - value)
        ids = table.column("id")
        for at in np.argsort(distance, kind="stable")[:NEAREST].tolist():
            if np.isfinite(distance[at]):
                text = " ".join(texts[at]) if isinstance(texts[at], list) else texts[at]
                text = text[:_SHOWN_CHARACTERS] if isinstance(text, str) else ""  # no text: tokens
                row = NearRow(float(distance[at]), str(ids[at].as_py()), float(found[at]), text)
                self._near.append(row)
        self._near = heapq.nsmallest(NEAREST, self._near)

    def as_json(self) -> dict[str, Any]:
        """Returns plain values."""
        return {
            "labels": dict(self._labels.most_common(_MOST_LABELS)),
            "doublings": self._histogram.doublings,
            "bins": {str(at): count for at, count in self._histogram.counts.items()},
            "near": [list(row) for row in self._near],
        }


class CorpusSummary(NamedTuple):
    """The results of all parts."""

    labels: Mapping[str, int]  # number of rows, or of words with a tag; the most frequent first
    histogram: Histogram
    near: Sequence[NearRow]

    @classmethod
    def of(cls, summaries: Iterable[Mapping[str, Any]]) -> "CorpusSummary":
        """Adds up the summaries of parts."""
        labels: collections.Counter[str] = collections.Counter()
        histogram = Histogram()
        near: list[NearRow] = []
        for each in filter(None, summaries):  # a part without rows has none
            labels.update(each["labels"])
            bins = {int(at): count for at, count in each["bins"].items()}
            histogram = Histogram.sum([histogram, Histogram(each["doublings"], bins)])
            near = heapq.nsmallest(2 * NEAREST, [*near, *(NearRow(*row) for row in each["near"])])
        return cls(dict(labels.most_common()), histogram, near)
