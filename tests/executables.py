"""What a test process has compiled, or read from the cache on disk, it keeps in memory.

Each run of a verb traces its steps anew and asks for programs that this process has run before. JAX
would read them from disk and link them again, a quarter of a second of CPU time each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax._src import compiler  # there is no public place to put this


def keep_executables() -> None:
    """From here on, an executable that this process has is taken before the one on disk."""
    kept: dict[str, tuple[Any, Any]] = {}
    read, write = compiler._cache_read, compiler._cache_write

    def take(module_name: str, cache_key: str, *more: Any) -> tuple[Any, Any]:
        if cache_key not in kept:
            found = read(module_name, cache_key, *more)
            if found[0] is None:
                return found
            kept[cache_key] = found
        return kept[cache_key]

    def keep(
        cache_key: str,
        seconds: float,
        module_name: str,
        backend: Any,
        executable: Any,
        host_callbacks: Sequence[Any],
    ) -> None:
        if not host_callbacks:
            kept[cache_key] = executable, seconds
        write(cache_key, seconds, module_name, backend, executable, host_callbacks)

    compiler._cache_read, compiler._cache_write = take, keep
