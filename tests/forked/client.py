"""What stands in for the interpreter, without its imports.

Has the server fork the process, with this one's environment, directory and open files; passes on
the signals that it gets, and ends as the process ends. Options of Python that only a start can obey
start it. Loads nothing but the standard library: it runs without site-packages, in 20 ms.
"""

import contextlib
import json
import os
import signal
import socket
from collections.abc import Sequence
from typing import Any

NAMED = "fork "
"""What it calls itself, for those who look for its children: with the number of the process."""

IMPORTS = "FORKED_IMPORTS"
"""Variable: what a process, and those that it starts, find imported besides."""

OBEYED = ("-B", "-u")
"""Options that a fork obeys."""

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def ask(path: str, request: dict[str, Any], files: Sequence[int]) -> socket.socket:
    """Asks for a process; returns the connection that is its life.

    Args:
        path: of the server's socket.
        request: `arguments` of Python, `executable`, `environment`, `directory`, `numbers` that
            the files are to have, `imports` that the server is to do first, signals that are
            `ignored`, as those are that whoever started it ignores, and whether it is the `leader`
            of its group, which then ends with it where whoever asked is killed.
        files: that it has open.
    """
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    raw = json.dumps(request).encode()
    socket.send_fds(connection, [len(raw).to_bytes(4, "big")], files)
    connection.sendall(raw)
    return connection


def open_files() -> list[int]:
    """Returns the numbers of the files that this process was started with."""
    found = []
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the listing itself
            if os.get_inheritable(number):
                found.append(number)
    return found


def main(path: str, python: str, executable: str, *arguments: str) -> None:
    """Is the process, to whoever looks.

    Args:
        path: of the server's socket.
        python: the interpreter.
        executable: what stands in for it.
        arguments: of Python.
    """
    first = next((word for word in arguments if word not in OBEYED), "-")
    if first.startswith("-") and first not in ("-m", "-c"):
        os.execv(python, [python, *arguments])
    ignored = [each for each in PASSED_ON if signal.getsignal(each) == signal.SIG_IGN]
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    request = {
        "arguments": arguments,
        "executable": executable,
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "imports": os.environ.get(IMPORTS, "").split(),
        "numbers": open_files(),
        "leader": os.getpgrp() == os.getpid(),
        "ignored": ignored,
    }
    answers = ask(path, request, request["numbers"]).makefile()
    pid = int(answers.readline())
    with open("/proc/self/comm", "w") as name:
        name.write(f"{NAMED}{pid}")

    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended, as this is about to hear
            os.kill(pid, number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    code = int(answers.readline() or -signal.SIGKILL)
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
