"""Prints a measurement as one JSON line with its machine, time and package versions."""

import datetime
import functools
import gc
import importlib.metadata
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.data.worker_process import available_cores


def report(
    figure: str,
    value: float,
    unit: str,
    *,
    peer: str | None = None,
    packages: Sequence[str] = (),
    **details: Any,
) -> None:
    """Prints one line: ``{"figure": "tokenizer.ratio", "value": 3.1, "unit": "x", ...}``.

    Args:
        figure: dotted name of the metric.
        value: value, printed with four significant digits.
        unit: unit of the value, such as ``tokens/s/core``.
        peer: other project that is measured or compared with ours.
        packages: distributions whose versions affect the metric.
        **details: other facts that affect the metric, as JSON values.
    """
    line = {
        "figure": figure,
        "value": float(f"{value:.4g}"),
        "unit": unit,
        "peer": peer,
        **details,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(packages),
    }
    print(json.dumps(line), flush=True)


@functools.cache
def machine() -> Mapping[str, Any]:
    """Returns the CPU and the available cores: ``{"cpu": "AMD EPYC 7B12", "cores": 2}``."""
    return {"cpu": _cpu_model(), "cores": available_cores(), "system": platform.system()}


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Returns the version of Python and of each distribution.

    Raises:
        PackageNotFoundError: if a distribution is not installed.
    """
    found = {name: importlib.metadata.version(name) for name in packages}
    return {"python": platform.python_version(), **found}


def interleaved(
    runs: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    before: Mapping[str, Callable[[], object]] | None = None,
) -> dict[str, list[float]]:
    """Times several functions alternately, so that a slow phase of the machine affects all.

    Args:
        runs: functions to time, by name. Each first runs once untimed.
        rounds: number of timings of each function.
        before: functions to run untimed before each timing, by the names in ``runs``. They remove
            effects of the previous function: cold caches, freed memory, waiting threads.

    Returns:
        The seconds of each round, by name.
    """
    before = before or {}
    for run in runs.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            gc.collect()  # or the next function's time would include collecting this garbage
            before.get(name, lambda: None)()
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """Returns the median of the rounds' ratios: ``([2, 3, 8], [1, 1, 4])`` -> 2.0."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return platform.processor() or platform.machine()
