"""The longest time that a command says nothing.

    python -m benchmarks.silence bert-jax demo --dir /tmp/demo

Prints one JSON line: seconds to the first line, the longest silence and between which lines it was,
seconds in all; the command's exit code becomes this one's. The command's output is a pipe, where a
live line cannot help: what is measured are lines. On a machine with other work on it the CPU
seconds of the command and its workers say more than a clock: they stand beside.
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
    """When something was heard."""

    wall: float  # seconds, by a clock
    cpu: float  # seconds, of the command and its workers
    line: str


class Silence(NamedTuple):
    """From one line to the next."""

    wall: float
    cpu: float
    between: tuple[str, str]


def silence(before: Moment, after: Moment) -> Silence:
    """Returns what passed between two lines."""
    passed = after.wall - before.wall
    return Silence(passed, after.cpu - before.cpu, (before.line, after.line))


def cpu_seconds(process: psutil.Process) -> float:
    """Returns the CPU time of a process and all that it started."""
    total = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += sum(each.cpu_times()[:4])
    return total


def listen(
    command: Sequence[str], *, environment: Mapping[str, str] | None = None, echo: bool = False
) -> tuple[list[Moment], int]:
    """Runs a command, and returns when each of its lines came, its end last, and its exit code.

    Args:
        command: and its arguments.
        environment: of the process; None for this one's.
        echo: show the lines with their times.
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
    """Runs the command of the command line."""
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
