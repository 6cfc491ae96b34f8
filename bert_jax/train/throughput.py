"""Tokens, FLOPs and waiting between two reports."""

import time
from typing import NamedTuple

import jax

from bert_jax.parallel.accelerators import peak_flops


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
