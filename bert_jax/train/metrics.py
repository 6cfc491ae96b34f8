"""Sums and counts, from device scalars to figures; speed between two reports."""

import time
from typing import NamedTuple

import jax

from bert_jax.parallel.accelerators import peak_flops
from bert_jax.task import Metrics, Sums


def to_host(metrics: Metrics) -> dict[str, tuple[float, float]]:
    """Copies metrics to the host: the one explicit device-to-host copy of a step."""
    return {name: (float(s), float(c)) for name, (s, c) in jax.device_get(metrics).items()}


def add(left: Sums, right: Sums) -> dict[str, tuple[float, float]]:
    """Returns the sums and counts of two parts taken together."""
    total: dict[str, tuple[float, float]] = dict(left)
    for name, (value, count) in right.items():
        old_value, old_count = total.get(name, (0.0, 0.0))
        total[name] = (old_value + value, old_count + count)
    return total


def means(sums: Sums) -> dict[str, float]:
    """Returns sum/count for every metric that counted anything."""
    return {name: value / count for name, (value, count) in sums.items() if count}


def select(sums: Sums, *names: str) -> dict[str, float]:
    """Returns the means of those of the named metrics that are present."""
    found = means(sums)
    return {name: found[name] for name in names if name in found}


class Throughput(NamedTuple):
    """Speed since the last report."""

    tokens_per_second: float  # that are not padding
    rows_per_second: float
    input_share: float  # of the time, spent standing still for the next batch
    mfu: float | None  # model FLOPs over the devices' peak; None where the peak is unknown


class Meter:
    """Counts what passes between reports."""

    def __init__(self, *, flops_per_row: float) -> None:
        """Starts the clock; `flops_per_row` are the model's, forward and backward."""
        self._flops_per_row = flops_per_row
        peak = peak_flops(jax.devices()[0])
        self._peak = None if peak is None else peak * jax.device_count()
        self.restart()

    def add(self, *, tokens: int, rows: int, waited: float) -> None:
        """Counts one step: non-padding tokens, rows, seconds waited for input."""
        self._tokens += tokens
        self._rows += rows
        self._waited += waited

    def read(self) -> Throughput:
        """Returns the speed since the last reading, and starts counting again."""
        seconds = max(time.perf_counter() - self._started, 1e-9)
        mfu = None
        if self._peak is not None:
            mfu = self._rows * self._flops_per_row / seconds / self._peak
        found = Throughput(
            self._tokens / seconds, self._rows / seconds, self._waited / seconds, mfu
        )
        self.restart()
        return found

    def restart(self) -> None:
        """Starts counting again, so that a pause for evaluation is no slow training."""
        self._started = time.perf_counter()
        self._tokens = 0
        self._rows = 0
        self._waited = 0.0
