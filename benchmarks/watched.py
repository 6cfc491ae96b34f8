"""Runs a command and measures its processes: seconds, CPU seconds, peak memory."""

import dataclasses
import resource
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

_SECONDS_BETWEEN_LOOKS = 0.05
_FORK_SERVER = "multiprocessing.forkserver"
MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Watched:
    """Costs of a command.

    Attributes:
        seconds: wall time of the command.
        cpu_seconds: CPU time of all processes. For children of a fork server, it is sampled every
            0.05 s.
        peaks: peak resident memory in MiB by process: ``{"main": 129.4, "worker 1": 118.0}``. Every
            process includes the pages of its mapped files.
    """

    seconds: float
    cpu_seconds: float
    peaks: Mapping[str, float]


def watch(command: Sequence[str], *, env: Mapping[str, str] | None = None) -> Watched:
    """Runs a command to its end.

    Args:
        command: program and arguments.
        env: environment of the command. If None, this process's environment.

    Raises:
        RuntimeError: if the command fails. The message contains the end of the output.
    """
    before = _cpu_seconds()
    start = time.perf_counter()
    peaks: dict[int, float] = {}
    roles: dict[int, str] = {}
    forked: dict[int, float] = {}
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        root = psutil.Process(process.pid)
        # The command prints a few lines. They fit into the pipe's 64 KiB, so read them at the end.
        while process.poll() is None:
            _sample(root, peaks, roles, forked)
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        seconds = time.perf_counter() - start
        printed = process.stdout.read() if process.stdout is not None else ""
    if process.returncode:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}:\n{printed[-2000:]}")
    named: dict[str, float] = {}
    for pid, peak in peaks.items():
        role = roles[pid]
        taken = sum(name.startswith(role) for name in named)
        named[role if role == "main" else f"{role} {taken + 1}"] = round(peak / MIB, 1)
    return Watched(seconds, _cpu_seconds() - before + sum(forked.values()), named)


def _sample(
    root: psutil.Process,
    peaks: dict[int, float],
    roles: dict[int, str],
    forked: dict[int, float],
) -> None:
    try:
        for process in (root, *root.children(recursive=True)):
            words = " ".join(process.cmdline())
            if process.pid not in roles:
                roles[process.pid] = _role(process, words, root)
            peaks[process.pid] = max(peaks.get(process.pid, 0), _peak_bytes(process))
            if _FORK_SERVER in words:
                spent = process.cpu_times()
                forked[process.pid] = spent.user + spent.system
    except (psutil.Error, OSError):
        return  # the process has just ended


def _role(process: psutil.Process, words: str, root: psutil.Process) -> str:
    if process.pid == root.pid:
        return "main"
    if "resource_tracker" in words:
        return "tracker"
    # The forks of a fork server have the server's command line, so compare the parent too.
    return "server" if _FORK_SERVER in words and process.ppid() == root.pid else "worker"


def _peak_bytes(process: psutil.Process) -> int:
    """Returns the peak resident memory, or the current size if the system does not record peaks."""
    status = Path(f"/proc/{process.pid}/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return process.memory_info().rss


def _cpu_seconds() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime
