"""What a test process has compiled, or read from the cache on disk, it keeps in memory.

Each run of a verb traces its steps anew and asks for programs that this process has run before. JAX
would read them from disk and link them again, a quarter of a second of CPU time each.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from jax._src import compiler  # there is no public place to put this

WORTH_KEEPING = 0.1  # seconds that it took to compile
MOST = 64  # of them, of megabytes each: a test asks for what the tests right before it ran


def keep_executables() -> None:
    """From here on, an executable that this process has is taken before the one on disk."""
    kept: OrderedDict[str, tuple[Any, Any]] = OrderedDict()
    read, write = compiler._cache_read, compiler._cache_write

    def remember(cache_key: str, found: tuple[Any, Any]) -> tuple[Any, Any]:
        kept[cache_key] = found
        kept.move_to_end(cache_key)
        if len(kept) > MOST:
            kept.popitem(last=False)
        return found

    def take(module_name: str, cache_key: str, *more: Any) -> tuple[Any, Any]:
        found = kept.get(cache_key) or read(module_name, cache_key, *more)
        return found if found[0] is None else remember(cache_key, found)

    def keep(
        cache_key: str,
        seconds: float,
        module_name: str,
        backend: Any,
        executable: Any,
        host_callbacks: Sequence[Any],
    ) -> None:
        if seconds > WORTH_KEEPING and not host_callbacks:
            remember(cache_key, (executable, seconds))
        write(cache_key, seconds, module_name, backend, executable, host_callbacks)

    compiler._cache_read, compiler._cache_write = take, keep
