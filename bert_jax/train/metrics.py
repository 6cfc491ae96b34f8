"""Metrics as sums and counts, and the training speed between two reports."""

import time
from typing import Any, NamedTuple

import jax
import numpy as np

from bert_jax.parallel.accelerators import peak_flops
from bert_jax.task import Metrics, Sums


def to_host(metrics: Metrics) -> dict[str, tuple[Any, Any]]:
    """Copies metrics to the host. This is the only device-to-host copy of a step."""

    def wide(value: Any) -> Any:
        return np.asarray(value, np.float64) if np.ndim(value) else float(value)

    return {name: (wide(s), wide(c)) for name, (s, c) in jax.device_get(metrics).items()}


def add(left: Sums, right: Sums) -> dict[str, tuple[Any, Any]]:
    """Adds sums and counts by name."""
    total: dict[str, tuple[Any, Any]] = dict(left)
    for name, (value, count) in right.items():
        old_value, old_count = total.get(name, (0.0, 0.0))
        total[name] = (old_value + value, old_count + count)
    return total


class Throughput(NamedTuple):
    """Speed since the last report."""

    tokens_per_second: float  # without padding
    rows_per_second: float
    input_share: float  # fraction of the time spent waiting for batches
    mfu: float | None  # model FLOPs over the devices' peak; None if the peak is unknown


class Meter:
    """Counts tokens, rows and time between reports."""

    def __init__(self, *, flops_per_row: float) -> None:
        """Starts the clock; `flops_per_row` includes the forward and the backward pass."""
        peak = peak_flops(jax.devices()[0])
        self._peak_rows = None if peak is None else peak * jax.device_count() / flops_per_row
        self.restart()

    def add(self, *, tokens: int, rows: int, waited: float) -> None:
        """Adds one step: tokens without padding, rows, and seconds waited for input."""
        self._tokens += tokens
        self._rows += rows
        self._waited += waited

    def read(self) -> Throughput:
        """Returns the speed since the last call, and restarts the count."""
        seconds = max(time.perf_counter() - self._started, 1e-9)
        rows = self._rows / seconds
        mfu = None if self._peak_rows is None else rows / self._peak_rows
        found = Throughput(self._tokens / seconds, rows, self._waited / seconds, mfu)
        self.restart()
        return found

    def restart(self) -> None:
        """Restarts the count. Call it after a pause, such as an evaluation."""
        self._started = time.perf_counter()
        self._tokens = self._rows = 0
        self._waited = 0.0
