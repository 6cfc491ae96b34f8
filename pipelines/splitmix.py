"""The mixing of SplitMix64 (Steele, Lea and Flood, "Fast splittable PRNGs", 2014)."""

from __future__ import annotations

import numpy as np


def mix64(values: np.ndarray) -> np.ndarray:
    """Returns uint64 numbers scattered over the whole range, one to one."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
