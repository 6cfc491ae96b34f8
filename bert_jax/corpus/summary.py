"""Counts of a part's results for the report: labels, histogram, rows near the threshold."""

import collections
import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from bert_jax.corpus.keep import Condition
from bert_jax.corpus.results import LABEL, PROBABILITIES, SCORE

BINS_PER_UNIT: Final = 20  # bins of the histogram have a width of 0.05
NEAREST: Final = 5  # rows near the threshold
_SHOWN_CHARACTERS: Final = 200
_MOST_LABELS: Final = 1000


class NearRow(NamedTuple):
    """A row whose value is near the threshold of the condition."""

    distance: float
    id: str
    value: float
    text: str


class PartSummary:
    """Adds up the results of tables."""

    def __init__(self, condition: Condition | None) -> None:
        self._threshold = None if condition is None else condition.threshold
        self._labels: collections.Counter[str] = collections.Counter()
        self._bins: collections.Counter[int] = collections.Counter()
        self._near: list[NearRow] = []

    def add(self, table: pa.Table, texts: Sequence[Any]) -> None:
        """Adds the rows of a table, before rows are dropped."""
        names = table.column_names
        if LABEL in names:
            labels = table.column(LABEL)
            whole = labels.combine_chunks()
            flat = whole.flatten() if pa.types.is_list(labels.type) else whole
            for each in flat.value_counts().to_pylist():
                self._labels[str(each["values"])] += each["counts"]
            best = np.stack(
                [each.to_numpy() for each in table.column(PROBABILITIES).combine_chunks().flatten()]
            ).max(axis=0)
            self._count(best)
        if SCORE in names:
            self._count(table.column(SCORE).to_numpy())
        if self._threshold is not None:
            self._add_near(table, texts)

    def _count(self, values: np.ndarray) -> None:
        bins, counts = np.unique(np.floor(values * BINS_PER_UNIT), return_counts=True)
        for each, count in zip(bins.tolist(), counts.tolist(), strict=True):
            self._bins[int(each)] += count

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
                text = str(texts[at])[:_SHOWN_CHARACTERS]
                row = NearRow(float(distance[at]), str(ids[at].as_py()), float(found[at]), text)
                self._near.append(row)
        self._near = heapq.nsmallest(NEAREST, self._near)

    def as_json(self) -> dict[str, Any]:
        """Returns plain values."""
        return {
            "labels": dict(self._labels.most_common(_MOST_LABELS)),
            "bins": {str(each): self._bins[each] for each in sorted(self._bins)},
            "near": [list(row) for row in self._near],
        }


class CorpusSummary(NamedTuple):
    """The results of all parts."""

    labels: Mapping[str, int]
    bins: Mapping[int, int]  # number of rows by `floor(value * BINS_PER_UNIT)`
    near: Sequence[NearRow]

    @classmethod
    def of(cls, summaries: Iterable[Mapping[str, Any]]) -> "CorpusSummary":
        """Adds up the summaries of parts."""
        labels: collections.Counter[str] = collections.Counter()
        bins: collections.Counter[int] = collections.Counter()
        near: list[NearRow] = []
        for each in summaries:
            labels.update(each.get("labels", {}))
            bins.update({int(at): count for at, count in each.get("bins", {}).items()})
            near = heapq.nsmallest(
                2 * NEAREST, [*near, *(NearRow(*row) for row in each.get("near", []))]
            )
        return cls(labels, dict(sorted(bins.items())), near)
