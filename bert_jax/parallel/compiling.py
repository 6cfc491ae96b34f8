"""Compiling: once for equal programs, said aloud, and without the compiler's own alarms."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Final, ParamSpec, TypeVar, cast

from jax._src.lib import utils  # pyright: ignore[reportPrivateImportUsage]

from bert_jax.narration import doing

# Of Abseil's log: errors reach Python as exceptions.
_FATAL_ONLY: Final = 3
_USUAL: Final = 1

# Functions of one maker that are kept, and with them what JAX has compiled for each: a run needs a
# step for each phase, a program of a TPU takes some 10 to 100 MB of each chip.
FUNCTIONS_KEPT: Final = 16

P = ParamSpec("P")
T = TypeVar("T")


def made_once(make: Callable[P, T]) -> Callable[P, T]:
    """Decorates what makes a function for JAX: equal arguments give the very same one.

    JAX traces and compiles a function once, but knows it by its identity: the closure that a second
    run, the next cell of a notebook or the next seed made anew would be traced and compiled again.

    The arguments have to be all that the function depends on: hashable, compared by value or by
    identity, never changed, no arrays. The last `FUNCTIONS_KEPT` are kept; a function that is
    dropped takes its programs with it, and `jax.clear_caches` frees the programs of all.
    """
    return cast(Callable[P, T], functools.lru_cache(maxsize=FUNCTIONS_KEPT)(make))


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
