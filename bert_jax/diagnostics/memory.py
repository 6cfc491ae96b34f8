"""The memory of this host, and what loader workers share of it."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from bert_jax.diagnostics.findings import Finding, ok, warn

# JAX and its libraries take most of it; a loader worker holds Python, numpy and grain.
_MEMORY_BYTES: Final = 4 * 2**30
# Batches pass from the loader's worker processes through shared memory; Docker gives 64 MiB of it.
_SHARED_MEMORY_BYTES: Final = 2**30


def check_memory() -> Iterator[Finding]:
    """Compares free memory and shared memory with what a run takes."""
    memory = psutil.virtual_memory()
    available, total = memory.available, memory.total
    # In a container psutil tells the host's memory; the kernel enforces the container's.
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text().strip()).isdecimal():
        total = min(total, int(text))
        available = min(available, total)
    text = f"{available / 2**30:.1f} GiB of {total / 2**30:.1f} GiB free"
    if available < _MEMORY_BYTES:
        yield warn("memory", f"{text}; a run needs about {_MEMORY_BYTES / 2**30:.0f} GiB")
    else:
        yield ok("memory", text)
    shared = Path("/dev/shm")
    if shared.is_dir() and (free := shutil.disk_usage(shared).free) < _SHARED_MEMORY_BYTES:
        yield warn(
            "shared memory",
            f"{free / 2**20:.0f} MiB free in {shared}, through which loader workers hand over "
            "batches: docker run --shm-size=2g, or loader.workers=0",
        )
