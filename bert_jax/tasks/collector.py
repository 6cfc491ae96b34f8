"""Predictions of a split's rows, collected in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bert_jax.errors import RunStopped


class Collector:
    """Takes the logits of each row once, and makes one record per example when all are there."""

    def __init__(
        self,
        rows: int,
        *,
        reduce: Callable[[int, np.ndarray], Any],
        finish: Callable[[Sequence[Any]], list[dict[str, Any]]],
    ) -> None:
        """Starts empty.

        Args:
            rows: of the split.
            reduce: a row's number and logits → what is kept of them. Raises ValueError on logits of
                another shape than the row's.
            finish: what was kept of every row, in their order → a record for each example.
        """
        self._reduce, self._finish = reduce, finish
        self._kept: list[Any] = [None] * rows
        self._missing = set(range(rows))

    def add(self, row: int, logits: np.ndarray) -> None:
        """Takes one row's logits.

        Args:
            row: its number in the split.
            logits: float32, unpadded: [labels] for sequence classification, [choices] for a choice,
                [pieces, labels] for token classification, [pieces, 2] (start, end) for question
                answering.

        Raises:
            ValueError: another shape, or a row that was added already.
            RunStopped: they are not finite.
        """
        if row not in self._missing:
            raise ValueError(f"logits of row {row}: found twice, allowed: once")
        if not np.isfinite(logits).all():
            raise RunStopped(
                f"logits of row {row}: found NaN or infinity, allowed: finite numbers; the model "
                "has diverged"
            )
        self._kept[row] = self._reduce(row, logits)
        self._missing.remove(row)

    def records(self) -> list[dict[str, Any]]:
        """Returns a record for every example of the split, in the order of its file.

        Raises:
            ValueError: a row was not added.
        """
        if self._missing:
            raise ValueError(
                f"logits: found none for {len(self._missing)} of {len(self._kept)} rows, the first "
                f"of them {min(self._missing)}, allowed: logits for every row"
            )
        return self._finish(self._kept)
