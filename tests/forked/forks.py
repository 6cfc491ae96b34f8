"""The server of a test process, and the file that takes the place of `python` in commands."""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.forked import client

ROOT = Path(__file__).resolve().parents[2]

# JAX reads them when it is imported, the compiler when it starts: forks set them.
_OF_A_FORK = ("JAX_", "XLA_", "LIBTPU_")
_TIMEOUT = 300.0


class Forks:
    """Starts Python processes as forks of one that has imported the program."""

    def __init__(self) -> None:
        """Starts that one, and waits for its imports."""
        self._directory = tempfile.TemporaryDirectory(prefix="bert_jax_forks_")
        self._socket = Path(self._directory.name, "socket")
        self.python = Path(self._directory.name, "python")
        module = Path(client.__file__)
        arguments = (str(self._socket), sys.executable, str(self.python))
        self.python.write_text(
            f"#!{sys.executable} -IS\n"
            f"import sys\nsys.path.append({str(module.parent)!r})\n"
            f"from {module.stem} import main\nmain(*{arguments!r}, *sys.argv[1:])\n"
        )
        self.python.chmod(0o755)
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(_OF_A_FORK)
        }
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.forked.server", str(self._socket)],
            cwd=ROOT,
            env=environment | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == b"ready\n"

    def start(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        output: Path,
        errors: Path,
    ) -> socket.socket:
        """Starts a process that leads a session; returns its connection, see `client.py`.

        Args:
            arguments: of Python.
            environment: all of it.
            output: file to append its standard output to.
            errors: the same of standard error.
        """
        appending = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        files = [os.open(os.devnull, os.O_RDONLY)]
        files += [os.open(path, appending, 0o644) for path in (output, errors)]
        request = {
            "arguments": arguments,
            "executable": str(self.python),
            "environment": dict(environment),
            "directory": str(ROOT),
            "imports": environment.get(client.IMPORTS, "").split(),
            "numbers": [0, 1, 2],
            "leader": True,
        }
        try:
            return client.ask(str(self._socket), request, files)
        finally:
            for file in files:
                os.close(file)

    def close(self) -> None:
        """Kills what still runs."""
        for end in (self._server.stdin, self._server.stdout):
            assert end is not None
            end.close()
        self._server.wait(_TIMEOUT)
        self._directory.cleanup()


@functools.cache
def forks() -> Forks:
    """Returns the one of this process, which conftest.py closes."""
    return Forks()


def forked_python() -> str:
    """Returns what stands for ``sys.executable`` in a command, and costs no imports.

    ``-m module``, ``-c program`` or a script, after ``-u`` or not; any other option starts Python.
    """
    return str(forks().python)


def process_behind(pid: int) -> int:
    """Returns the id of the process that such a command's own stands for."""
    name, end = Path(f"/proc/{pid}/comm"), time.monotonic() + _TIMEOUT
    while not (found := name.read_text().strip()).startswith(client.NAMED):
        assert time.monotonic() < end, found  # it has been told, and has yet to say so
        time.sleep(0.01)
    return int(found.removeprefix(client.NAMED))
