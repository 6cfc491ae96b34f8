"""The processor cores of this process."""

import os


def available_cores() -> int:
    """Returns the cores that this process may use, often fewer than the machine's."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
