"""``python -m tests.forked.server SOCKET``: becomes each Python process that somebody asks for.

A connection to the socket is a process, see `client.py`. It is told the process id in one line and
the exit code in another; if it ends before that, the process is killed.
"""

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import warnings
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.executables import write_from_every_process
from tests.forked.child import become
from tests.forked.traces import trace_steps

# What the processes import when they run, the last ones in the midst of it; nothing computes.
_VERBS: Final = "evaluate export features fill_mask finetune import_checkpoint predict pretrain"
_IMPORTED: Final = (
    *("bert_jax.cli.commands", "bert_jax.data.loader.loader", "bert_jax.launch.reports"),
    *("bert_jax.pipelines.examples", "bert_jax.planning.compilation.step"),
    *(f"bert_jax.verbs.{verb}" for verb in _VERBS.split()),
    *("jax.experimental.topologies", "jaxlib.mlir.dialects.mhlo", "jaxlib.mlir.dialects.builtin"),
    *("psutil", "scipy.stats", "tensorboardX", "tensorflow_datasets"),
)
_MOST_FILES: Final = 200


def _set_by_imports() -> dict[str, str]:
    """Returns the variables that importing has set, as it would in each process."""
    started_with = Path("/proc/self/environ").read_text().split("\0")
    return {n: value for n, value in os.environ.items() if f"{n}={value}" not in started_with}


class _Fork(NamedTuple):
    connection: socket.socket
    leader: bool


class Server:
    """Forks for every connection until standard input ends; then kills what is left."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening, self._added = listening, _set_by_imports()
        self._running: dict[int, _Fork] = {}
        self._wake, woken = os.pipe()
        for end in (self._wake, woken):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which closes our input
        signal.set_wakeup_fd(woken)
        self._selector = selectors.DefaultSelector()
        for file in (0, self._wake, listening.fileno()):
            self._selector.register(file, selectors.EVENT_READ)

    def serve(self) -> None:
        """Runs to the end."""
        while 0 not in (ready := {key.fd for key, _ in self._selector.select()}):
            if self._wake in ready:
                os.read(self._wake, 4096)
            for pid, fork in self._running.items():
                if fork.connection.fileno() in ready:  # nothing is ever sent: it has ended
                    self._kill(pid)
                    self._selector.unregister(fork.connection)
                    fork.connection.close()
            self._reap()
            if self._listening.fileno() in ready:
                self._fork()
        for pid in self._running:
            self._kill(pid)

    def _fork(self) -> None:
        connection, _ = self._listening.accept()
        length, files, *_ = socket.recv_fds(connection, 4, _MOST_FILES)
        with connection.makefile("rb") as stream:
            request: dict[str, Any] = json.loads(stream.read(int.from_bytes(length, "big")))
        for name in request["imports"]:
            importlib.import_module(name)
        if (pid := os.fork()) == 0:
            become(request, files, added=self._added)
        for file in files:
            os.close(file)
        self._running[pid] = _Fork(connection, request["leader"])
        self._selector.register(connection, selectors.EVENT_READ)
        _tell(connection, pid)

    def _reap(self) -> None:
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            connection = self._running.pop(pid).connection
            if connection.fileno() >= 0:
                self._selector.unregister(connection)
                _tell(connection, os.waitstatus_to_exitcode(status))
                connection.close()

    def _kill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if self._running[pid].leader else os.kill)(pid, signal.SIGKILL)


def _tell(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # it has ended
        connection.sendall(b"%d\n" % number)


def main(path: str) -> None:
    """Listens at a path."""
    for name in _IMPORTED:
        importlib.import_module(name)
    write_from_every_process()
    trace_steps()
    # As in conftest.py: no process looks through what was imported for cycles.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    # Nothing has been computed: the threads that JAX warns of have not been started.
    warnings.filterwarnings("ignore", message=".*os.fork.*")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(64)
        print("ready", flush=True)
        Server(listening).serve()


if __name__ == "__main__":
    main(sys.argv[1])
