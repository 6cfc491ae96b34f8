"""Starts command-line processes as forks of a server that has already imported the program."""

import atexit
import json
import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

from tests.executables import write_from_every_process

ROOT = Path(__file__).resolve().parent.parent

# Use a separate server. The program's own pools share a server that imports few modules.
_SERVER = forkserver.ForkServer()
_SERVER.set_forkserver_preload(
    [
        *("tests.executables", "jax.experimental.topologies", "scipy.stats", "tensorboardX"),
        *(f"bert_jax.verbs.{verb}" for verb in ("evaluate", "export", "finetune", "pretrain")),
    ]
)


def start_warm(
    arguments: Sequence[str], environment: Mapping[str, str], *, output: Path, errors: Path
) -> BaseProcess:
    """Starts ``python -m MODULE …`` or ``python -c PROGRAM …`` in a new session.

    Args:
        arguments: arguments of Python.
        environment: the whole environment.
        output: file to append standard output to.
        errors: file to append standard error to.
    """
    process = multiprocessing.get_context("forkserver").Process(
        target=_become, args=([*arguments], {**environment}, str(output), str(errors))
    )
    with mock.patch.object(forkserver, "connect_to_new_process", _SERVER.connect_to_new_process):
        process.start()
    return process


def _become(arguments: list[str], environment: dict[str, str], output: str, errors: str) -> None:
    os.setsid()
    for path, number in ((output, 1), (errors, 2)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, number)
        os.close(file)
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environment)
    import jax

    # JAX read the environment when the server imported it, so set its options again.
    for name, default in jax.config.values.items():
        value: Any = environment.get(name.upper())
        if name == "jax_num_cpu_devices":
            value = int(value or -1)
        elif isinstance(default, bool | int | float) and value is not None:
            value = type(default)(json.loads(value.lower()))
        if value is not None:
            jax.config.update(name, value)
    write_from_every_process()
    kind, what, *rest = arguments
    try:
        if kind == "-m":
            sys.argv = [what, *rest]
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            sys.argv = ["-c", *rest]
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
    finally:
        atexit._run_exitfuncs()
