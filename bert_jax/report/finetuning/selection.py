"""Which examples a section shows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from bert_jax.report.rendering import SHOWN

Record: TypeAlias = Mapping[str, Any]


class Selection(NamedTuple):
    """The first few of a list of examples."""

    records: Sequence[Record]
    total: int


def select(
    records: Iterable[Record], *, limit: int = SHOWN, largest: Callable[[Record], Any] | None = None
) -> Selection:
    """Returns the first `limit` records, in descending order of `largest` if given."""
    found = list(records)
    if largest is not None:
        found.sort(key=largest, reverse=True)
    return Selection(found[:limit], len(found))


def confidence(record: Record) -> float:
    """Returns the probability of the prediction."""
    return float(record["probabilities"][record["prediction"]])
