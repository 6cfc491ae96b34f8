"""Measures the longest time that a command prints nothing.

    python -m benchmarks.silence bert-jax demo --dir /tmp/demo

Prints one JSON line: seconds to the first line, the longest silence and the lines around it, and
total seconds. The exit code is the command's. The command writes to a pipe, so it prints no live
lines. The JSON line also has CPU seconds of the command and its workers, which are more reliable on
a busy machine.
"""

import contextlib
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import psutil


class Moment(NamedTuple):
    """A line of output and its time."""

    wall: float  # seconds of wall time
    cpu: float  # CPU seconds of the command and its workers
    line: str


class Silence(NamedTuple):
    """Time between two lines."""

    wall: float
    cpu: float
    between: tuple[str, str]


def silence(before: Moment, after: Moment) -> Silence:
    """Returns the time between two lines."""
    passed = after.wall - before.wall
    return Silence(passed, after.cpu - before.cpu, (before.line, after.line))


def cpu_seconds(process: psutil.Process) -> float:
    """Returns the CPU time of a process and all its children."""
    total = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += sum(each.cpu_times()[:4])
    return total


def listen(
    command: Sequence[str], *, environment: Mapping[str, str] | None = None, echo: bool = False
) -> tuple[list[Moment], int]:
    """Runs a command. Returns the times of all lines and of its end, and the exit code.

    Args:
        command: program and arguments.
        environment: environment of the process. If None, this process's environment.
        echo: print the lines with their times.
    """
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    watched = psutil.Process(process.pid)
    started = time.monotonic()
    heard = [Moment(0.0, 0.0, "(start)")]
    for line in process.stdout:
        now = time.monotonic() - started
        heard.append(Moment(now, max(cpu_seconds(watched), heard[-1].cpu), line.strip()))
        if echo:
            print(f"{now:7.1f} {heard[-1].cpu:7.1f} {line}", end="", file=sys.stderr)
    code = process.wait()
    heard.append(Moment(time.monotonic() - started, heard[-1].cpu, "(end)"))
    return heard, code


def main() -> int:
    """Runs the command given in the arguments."""
    heard, code = listen(sys.argv[1:], echo=True)
    silences = [silence(*pair) for pair in itertools.pairwise(heard)]
    by_clock = max(silences, key=lambda found: found.wall)
    by_cpu = max(silences, key=lambda found: found.cpu)
    figures = {
        "first_line_s": round(heard[1].wall, 2),
        "first_line_cpu_s": round(heard[1].cpu, 2),
        "longest_silence_s": round(by_clock.wall, 2),
        "between": by_clock.between,
        "longest_silence_cpu_s": round(by_cpu.cpu, 2),
        "cpu_between": by_cpu.between,
        "seconds": round(heard[-1].wall, 1),
        "cpu_seconds": round(heard[-1].cpu, 1),
    }
    print(json.dumps({"command": sys.argv[1:], **figures}))
    return code


if __name__ == "__main__":
    sys.exit(main())
