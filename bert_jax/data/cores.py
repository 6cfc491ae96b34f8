"""The processor cores of this process."""

import os


def available_cores() -> int:
    """Returns the number of cores that this process may use; the machine may have more."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
