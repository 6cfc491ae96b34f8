"""Compiling, said aloud, and without the compiler's own alarms."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final

from jax._src.lib import utils  # pyright: ignore[reportPrivateImportUsage]

from bert_jax.narration import doing

# Of Abseil's log: errors reach Python as exceptions.
_FATAL_ONLY: Final = 3
_USUAL: Final = 1


@contextlib.contextmanager
def compiling(what: str) -> Iterator[None]:
    """Shows that the block compiles, with the seconds that it takes.

    XLA's banners ("Very slow compile?", "Constant folding … is taking > 1s") are left out: they ask
    for bug reports.

    Args:
        what: is compiled, such as ``the step (32 × 128 tokens)``.
    """
    with doing(f"compiling {what}", at_once=True):
        utils.absl_set_min_log_level(_FATAL_ONLY)
        try:
            yield
        finally:
            level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "")
            utils.absl_set_min_log_level(int(level) if level.isdigit() else _USUAL)
