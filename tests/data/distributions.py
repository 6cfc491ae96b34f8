"""Tests whether two samples have the same distribution."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats


def same_distribution(ours: Sequence[int], theirs: Sequence[int]) -> float:
    """Returns the p-value of a chi-square test that two samples have one distribution."""
    pooled = Counter([*ours, *theirs])
    bins: dict[int, int] = {}
    filled, number = 0, 0
    for value in sorted(pooled):  # a bin has neighbouring values, and at least 40 observations
        bins[value] = number
        filled += pooled[value]
        if filled >= 40:
            filled, number = 0, number + 1
    table = np.zeros((2, number + 1), np.int64)
    for row, sample in enumerate((ours, theirs)):
        for value in sample:
            table[row, bins[value]] += 1
    table = table[:, table.sum(0) > 0]
    if table.shape[1] == 1:
        return 1.0
    found: Any = stats.chi2_contingency(table)
    return float(found.pvalue)
