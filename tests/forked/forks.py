"""The server of a test session, and the file that takes the place of `python` in commands."""

import contextlib
import fcntl
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

HOME = "TESTS_FORKS_HOME"
"""Variable: directory of the session's server, which the workers of pytest-xdist share."""

LIFE, PID = "life", "pid"  # files there


class ServerHome:
    """Where the one server of a test session lives: of whoever has the workers of pytest-xdist."""

    def __init__(self) -> None:
        """Makes the directory, and starts no server: that is for whoever first needs it."""
        self._directory = tempfile.TemporaryDirectory(prefix="bert_jax_forks_")
        os.environ[HOME] = self._directory.name
        self._root = Path(self._directory.name)
        os.mkfifo(self._root / LIFE)
        # The server ends when nobody has it open for writing: also when this process is killed.
        self._life = os.open(self._root / LIFE, os.O_RDWR)

    def close(self) -> None:
        """Ends the server, which kills what still runs."""
        os.close(self._life)
        if (pid := self._root / PID).exists():
            words, end = Path("/proc", pid.read_text(), "cmdline"), time.monotonic() + _TIMEOUT
            with contextlib.suppress(OSError):  # it has ended
                while words.read_bytes() and time.monotonic() < end:
                    time.sleep(0.01)
        self._directory.cleanup()


class Forks:
    """Starts Python processes as forks of one that has imported the program."""

    def __init__(self, root: Path) -> None:
        """Starts that one, if nobody has, and waits for its imports.

        Args:
            root: of the session's `ServerHome`.
        """
        self._socket, self.python = root / "socket", root / "python"
        with (root / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._socket.exists():
                self._start_server(root)

    def _start_server(self, root: Path) -> None:
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
        with open(root / LIFE, opener=_at_once) as life:
            server = subprocess.Popen(
                [sys.executable, "-m", "tests.forked.server", str(self._socket)],
                cwd=ROOT,
                env=environment | {"PYTHONPATH": str(ROOT)},
                stdin=life,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        (root / PID).write_text(str(server.pid))
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        server.stdout.close()
        server.returncode = 0  # it may outlive this process, which is not to ask for its end

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
            "ignored": [],
        }
        try:
            return client.ask(str(self._socket), request, files)
        finally:
            for file in files:
                os.close(file)


def _at_once(path: str, flags: int) -> int:
    """Opens a pipe that nobody may have open for writing any more."""
    return os.open(path, flags | os.O_NONBLOCK)


@functools.cache
def forks() -> Forks:
    """Returns the one of this test session, whose home conftest.py made."""
    return Forks(Path(os.environ[HOME]))


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
