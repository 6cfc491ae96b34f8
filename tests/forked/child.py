"""From a fork of the server to the Python process that was asked for."""

import atexit
import fcntl
import multiprocessing
import os
import runpy
import signal
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jax

from tests.forked.client import OBEYED

# Where the files that come with a request wait for their numbers: above all that are in use.
_PARKED = 512


def become(request: dict[str, Any], files: Sequence[int], *, added: Mapping[str, str]) -> NoReturn:
    """Runs what the arguments say, and ends as the interpreter does.

    Args:
        request: see `client.py`.
        files: what it has open, to be numbered as the request says.
        added: variables that importing has set.
    """
    code: Any = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in request["ignored"]:
            signal.signal(number, signal.SIG_IGN)
        os.setsid()
        _take_files(files, request["numbers"])
        os.chdir(request["directory"])
        os.environ.clear()
        os.environ.update({**added, **request["environment"]})
        _configure_jax(request["environment"])
        sys.executable = request["executable"]
        multiprocessing.set_executable(sys.executable)
        sys.orig_argv = [sys.executable, *request["arguments"]]
        _run(request["arguments"])
        code = 0
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        code = 0 if ended.code is None else ended.code & 255 if isinstance(ended.code, int) else 1
    except KeyboardInterrupt as error:  # as the interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
        code = -signal.SIGINT
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        _leave(code)


def _take_files(files: Sequence[int], numbers: Sequence[int]) -> None:
    parked = [fcntl.fcntl(file, fcntl.F_DUPFD, _PARKED) for file in files]
    os.closerange(0, _PARKED)  # the server's own too, which are never touched again
    for file, number in zip(parked, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


def _configure_jax(environment: Mapping[str, str]) -> None:
    """Sets what JAX reads from the environment when it is imported: none of it was set then."""
    for name, default in jax.config.values.items():
        if (said := environment.get(name.upper())) is not None:
            if isinstance(default, bool):
                value: Any = said.lower() in ("y", "yes", "t", "true", "on", "1")
            else:
                value = type(default)(said) if isinstance(default, int | float) else said
            jax.config.update(name, value)


def _run(arguments: Sequence[str]) -> None:
    """Runs ``-m MODULE …``, ``-c PROGRAM …`` or ``SCRIPT …`` as the main module."""
    while arguments[0] in OBEYED:
        if arguments[0] == "-u":
            for stream in (sys.stdout, sys.stderr):
                stream.reconfigure(write_through=True)  # pyright: ignore
        arguments = arguments[1:]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    kind, rest = arguments[0], [*arguments[1:]]
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if kind == "-m":
        _search(os.getcwd(), path)
        sys.argv = [rest[0], *rest[1:]]
        runpy._run_module_as_main(rest[0])  # pyright: ignore[reportAttributeAccessIssue]
    elif kind == "-c":
        _search("", path)
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        _search(os.path.dirname(os.path.abspath(kind)), path)
        sys.argv = [kind, *rest]
        main.__file__ = kind
        with open(kind, "rb") as script:
            exec(compile(script.read(), kind, "exec"), main.__dict__)


def _search(first: str, path: Sequence[str]) -> None:
    """The search path of a start: then what PYTHONPATH says, then what is installed."""
    installed = [each for each in sys.path if each.startswith((sys.base_prefix, sys.prefix))]
    sys.path[:] = [first, *filter(None, path), *installed]


def _leave(code: int) -> NoReturn:
    """Threads are waited for, exit handlers run, and what is buffered is written."""
    try:
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)
