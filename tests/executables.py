"""Reuses compiled programs between tests."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from jax._src import compiler, distributed  # no public API for this

WORTH_KEEPING = 0.1  # minimum compile time in seconds
_KEPT: OrderedDict[str, tuple[Any, Any]] = OrderedDict()
MOST = 64  # number of programs of some megabytes each, enough for the preceding tests


def keep_executables() -> None:
    """Makes JAX reuse this process's executables before it reads the cache on disk.

    Each run of a verb traces its steps again and requests programs that this process ran before.
    Reading and linking a program from disk takes a quarter of a second of CPU time.
    """
    read, write = compiler._cache_read, compiler._cache_write

    def remember(cache_key: str, found: tuple[Any, Any]) -> tuple[Any, Any]:
        _KEPT[cache_key] = found
        _KEPT.move_to_end(cache_key)
        if len(_KEPT) > MOST:
            _KEPT.popitem(last=False)
        return found

    def take(module_name: str, cache_key: str, *more: Any) -> tuple[Any, Any]:
        found = _KEPT.get(cache_key) or read(module_name, cache_key, *more)
        return found if found[0] is None else remember(cache_key, found)

    def keep(
        cache_key: str,
        seconds: float,
        module_name: str,
        backend: Any,
        executable: Any,
        *callbacks: Sequence[Any],  # jax 0.10: callbacks on the host
    ) -> None:
        if seconds > WORTH_KEEPING and not any(callbacks):
            remember(cache_key, (executable, seconds))
        write(cache_key, seconds, module_name, backend, executable, *callbacks)

    compiler._cache_read, compiler._cache_write = take, keep


def forget_executables() -> None:
    """Drops the executables that this process keeps."""
    _KEPT.clear()


def write_from_every_process() -> None:
    """Makes each process of a job write its programs to the cache on disk.

    By default, only process 0 writes. On CPUs, the programs of process 1 have other cache keys, so
    process 1 would compile all of them at each start.
    """
    write = compiler._cache_write

    def as_process_0(*arguments: Any) -> None:
        state = distributed.global_state
        own, state.process_id = state.process_id, 0
        try:
            write(*arguments)
        finally:
            state.process_id = own

    compiler._cache_write = as_process_0
