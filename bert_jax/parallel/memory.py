"""The memory of this process's devices and host, and errors that mean that it is full."""

import contextlib
import errno
import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

from bert_jax.errors import OutOfMemory

_CGROUPS: Final = Path("/sys/fs/cgroup")
_UNITS: Final = {unit: 2 ** (10 * power) for power, unit in enumerate("bKMGTP")}

# "allocating 9267353732 bytes", "trying to allocate 8.00GiB", "to reserve 10.51G"
_WANTED = re.compile(r"(?:allocat\w*|reserve)\D*?([\d.]+) ?(b(?=ytes)|[KMGTP](?=i?B|\b))")
# A kernel's memory within a core. It depends on the kernel, not on the settings.
_OF_A_CORE = re.compile(r"memory space (?!hbm)\w+", re.IGNORECASE)
# Messages of libtpu 0.0.42 to 0.0.51: the temporaries do not fit, or the whole program does not.
_SIZE = r"([\d.]+)([KMGT]?)"
_TOO_LARGE = (
    re.compile(rf"temporaries \({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm", re.IGNORECASE),
)


class Memory(NamedTuple):
    """The memory of one device, or of the host that its CPU devices share."""

    owner: str  # ``"this host"``, ``"NVIDIA H100 80GB HBM3"``
    total: int  # bytes that this process can have
    free: int
    sharing: int = 1  # number of this process's devices that share it

    def holds(self, size: int) -> bool:
        """Returns whether `size` more bytes on each device fit."""
        return size * self.sharing <= self.free

    def describe(self) -> str:
        """Returns ``"5.9 GiB of 16.0 GiB free"``."""
        return f"{describe_bytes(self.free)} of {describe_bytes(self.total)} free"


def describe_bytes(size: float) -> str:
    """Returns bytes as text: ``"8.6 GiB"``, or ``"12.5 MiB"`` below 0.1 GiB."""
    gib = size / 2**30
    return f"{gib:,.1f} GiB" if gib >= 0.1 else f"{gib * 1024:.1f} MiB"


def host_memory() -> Memory:
    """Returns the memory of this host, within the limits of containers and of this process."""
    memory = psutil.virtual_memory()
    limits = [(memory.total, memory.available + psutil.swap_memory().free), *_cgroup_limits()]
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        limits.append((address_space, address_space - psutil.Process().memory_info().vms))
    totals, free = zip(*limits, strict=True)
    return Memory("this host", min(totals), max(0, min(free)))


def _cgroup_limits() -> Iterator[tuple[int, int]]:
    """Yields the limit and the free bytes of each control group (version 2) of this process."""
    with contextlib.suppress(OSError, ValueError):
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        (own,) = (line.removeprefix("0::/") for line in lines if line.startswith("0::/"))
        group = _CGROUPS / own
        for folder in (group, *(each for each in group.parents if each >= _CGROUPS)):
            with contextlib.suppress(OSError, ValueError):  # the root and unlimited groups
                limit = int((folder / "memory.max").read_text())
                stat = dict(map(str.split, (folder / "memory.stat").read_text().splitlines()))
                used = int((folder / "memory.current").read_text())
                yield limit, limit - used + int(stat["inactive_file"])  # without the file cache


def device_memory() -> Memory | None:
    """Returns the memory of the local device with the least free memory; None if unknown.

    CPU devices have the host's memory. Opens the devices.
    """
    import jax

    devices = jax.local_devices()
    if devices[0].platform == "cpu":
        return host_memory()._replace(sharing=len(devices))
    found = [
        Memory(
            device.device_kind, stats["bytes_limit"], stats["bytes_limit"] - stats["bytes_in_use"]
        )
        for device in devices
        if "bytes_limit" in (stats := device.memory_stats() or {})
    ]
    return min(found, key=lambda memory: memory.free, default=None)


def out_of_memory(error: Exception) -> OutOfMemory | None:
    """Returns an error of a library as `OutOfMemory`, or None if it has another cause."""
    if isinstance(error, OutOfMemory):
        return error
    text = str(error)
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        memory = host_memory()
    elif _is_exhausted(error, text):
        memory = device_memory()
    else:
        return None
    if (sizes := memory_refused(text)) is not None:
        needed, available = map(describe_bytes, sizes)
        found = f"a program needs {needed} of {available}"
    else:
        wanted = _WANTED.search(text)
        size = describe_bytes(_bytes(*wanted.groups())) if wanted else "memory"
        found = f"cannot allocate {size}"
        found += f" with {memory.describe()}" if memory else ""
    return OutOfMemory(
        "memory.full", f"out of memory: {found}.", place=memory.owner if memory else "devices"
    )


def _is_exhausted(error: Exception, text: str) -> bool:
    """Returns whether JAX's error means that a device's memory is full.

    Services report RESOURCE_EXHAUSTED for quotas, and the compiler for kernels.
    """
    jax: Any = sys.modules.get("jax")
    return (
        jax is not None
        and isinstance(error, jax.errors.JaxRuntimeError)
        and "RESOURCE_EXHAUSTED" in text
        and not _OF_A_CORE.search(text)
        and bool(memory_refused(text) or _WANTED.search(text))
    )


def memory_refused(message: str) -> tuple[int, int] | None:
    """Returns the needed and the available bytes of HBM from a message of the TPU compiler.

    Returns None for another message.
    """
    for one in _TOO_LARGE:
        if found := one.search(message):
            needed, available = found.groups()[:2], found.groups()[2:]
            return _bytes(*needed), _bytes(*available)
    return None


def _bytes(number: str, unit: str) -> int:
    return round(float(number.rstrip(".")) * _UNITS[unit or "b"])


@contextlib.contextmanager
def advising(advice: str) -> Iterator[None]:
    """Converts errors of a full memory within the block to `OutOfMemory`, followed by advice."""
    try:
        yield
    except Exception as error:
        if (found := out_of_memory(error)) is None:
            raise
        raise found.followed_by(f" {advice}") from error
