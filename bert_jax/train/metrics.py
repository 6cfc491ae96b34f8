"""Sums and counts, from device scalars to figures."""

import jax

from bert_jax.task import Metrics, Sums


def to_host(metrics: Metrics) -> dict[str, tuple[float, float]]:
    """Copies metrics to the host: the one explicit device-to-host copy of a step."""
    return {name: (float(s), float(c)) for name, (s, c) in jax.device_get(metrics).items()}


def add(left: Sums, right: Sums) -> dict[str, tuple[float, float]]:
    """Returns the sums and counts of two parts taken together."""
    total: dict[str, tuple[float, float]] = dict(left)
    for name, (value, count) in right.items():
        old_value, old_count = total.get(name, (0.0, 0.0))
        total[name] = (old_value + value, old_count + count)
    return total


def means(sums: Sums) -> dict[str, float]:
    """Returns sum/count for every metric that counted anything."""
    return {name: value / count for name, (value, count) in sums.items() if count}


def select(sums: Sums, *names: str) -> dict[str, float]:
    """Returns the means of those of the named metrics that are present."""
    found = means(sums)
    return {name: found[name] for name in names if name in found}
