"""Means over seeds, and whether two of them differ by more than chance."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy import stats

Alternative = Literal["less", "greater"]


class Spread(NamedTuple):
    """Mean and standard deviation over seeds: ``5.120 ± 0.010``."""

    mean: float
    deviation: float  # of the sample: divided by n - 1; 0 for one seed

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Returns the spread of one value per seed."""
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        return cls(float(np.mean(values)), deviation)

    def text(self, digits: int = 3) -> str:
        """Returns the spread as text."""
        return f"{self.mean:.{digits}f} ± {self.deviation:.{digits}f}"


def welch(first: Sequence[float], second: Sequence[float], alternative: Alternative) -> float:
    """Returns the p-value of Welch's one-sided t-test, which allows unequal variances.

    A small value is evidence that the mean of `first` is less (or greater) than `second`'s. If
    neither varies, it is 0 or 1. Source: B. L. Welch, Biometrika 34, 1947; `scipy.stats.ttest_ind`.
    """
    one, two = Spread.of(first), Spread.of(second)
    if not one.deviation and not two.deviation:
        holds = one.mean < two.mean if alternative == "less" else one.mean > two.mean
        return 0.0 if holds else 1.0
    found = stats.ttest_ind(first, second, equal_var=False, alternative=alternative)
    return float(found.pvalue)  # pyright: ignore[reportAttributeAccessIssue]
