"""A process that has imported the program and forks one process for each command line.

Importing costs seconds of CPU time in every process, forking next to none. It reads one JSON
request a line from standard input and answers on standard output: ``{"id": …, "pid": …}`` at once
and ``{"id": …, "code": …}`` when the process has ended. A request: ``id``, ``arguments``,
``stdout``, ``stderr`` and ``environment`` (changes; null removes).
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import sys
import types
import warnings
from typing import Any

# What the verbs import when they run.
import bert_jax.cli.commands
import bert_jax.config
import bert_jax.verbs.evaluate
import bert_jax.verbs.export
import bert_jax.verbs.features
import bert_jax.verbs.fill_mask
import bert_jax.verbs.finetune
import bert_jax.verbs.import_checkpoint
import bert_jax.verbs.predict
import bert_jax.verbs.pretrain  # noqa: F401
from bert_jax.cli import main
from tests.executables import write_from_every_process


def serve() -> None:
    """Forks for every request until standard input ends; then kills what is left."""
    write_from_every_process()
    # As in conftest.py: no process looks through what was imported for cycles.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    # Nothing has been computed: the threads that JAX warns of have not been started.
    warnings.filterwarnings("ignore", message=".*os.fork.*")
    wake, woken = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which closes our input
    signal.set_wakeup_fd(woken)
    running: dict[int, Any] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        buffer = b""
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if wake in ready:
                os.read(wake, 4096)
            while (ended := _reap(running)) is not None:
                answer(ended)
            if 0 not in ready:
                continue
            if not (read := os.read(0, 65536)):
                break
            *lines, buffer = (buffer + read).split(b"\n")
            for line in lines:
                request = json.loads(line)
                if (pid := os.fork()) == 0:
                    run(request)
                running[pid] = request["id"]
                answer({"id": request["id"], "pid": pid})
    for pid in running:
        os.kill(pid, signal.SIGKILL)


def _reap(running: dict[int, Any]) -> dict[str, Any] | None:
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return {"id": running.pop(pid), "code": os.waitstatus_to_exitcode(status)} if pid else None


def answer(message: dict[str, Any]) -> None:
    """Writes a line to whoever asked."""
    os.write(1, json.dumps(message).encode() + b"\n")


def run(request: dict[str, Any]) -> None:
    """Becomes the process that was asked for, as the interpreter would have started it."""
    code: Any = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, path in ((1, request["stdout"]), (2, request["stderr"])):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
        for name, value in request["environment"].items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        sys.argv = ["bert-jax", *request["arguments"]]
        sys.modules["__main__"] = types.ModuleType("__main__")  # loader workers import none
        main()
        code = 0
    except SystemExit as ended:
        code = 0 if ended.code is None else ended.code if isinstance(ended.code, int) else 1
    except BaseException as error:  # as the interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        _leave(code)


def _leave(code: int) -> None:
    """Ends as the interpreter does: exit handlers run, and what is buffered is written."""
    import atexit

    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()
