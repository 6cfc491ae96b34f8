"""The seconds that this process has spent on compiling, as JAX itself measures them."""

from __future__ import annotations

import functools
import time
from typing import Final

import jax

_COMPILING: Final = "/jax/core/compile/"  # tracing, lowering to MLIR, XLA


class CompileClock:
    """Adds up what JAX reports; a trace within a trace counts once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._counted: list[tuple[float, float]] = []  # (when it began, seconds)

    def heard(self, event: str, duration_secs: float, **_: object) -> None:
        """Takes an event of JAX, which reports it when it ends."""
        if not event.startswith(_COMPILING):
            return
        began = time.monotonic() - duration_secs
        while self._counted and self._counted[-1][0] >= began:  # within this one
            self.seconds -= self._counted.pop()[1]
        self.seconds += duration_secs
        self._counted.append((began, duration_secs))


@functools.cache
def compile_clock() -> CompileClock:
    """Returns this process's clock, which runs from the first call on."""
    clock = CompileClock()
    jax.monitoring.register_event_duration_secs_listener(clock.heard)
    return clock
