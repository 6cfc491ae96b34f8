"""Compares an interrupted run with an undisturbed one, and checks for leftover processes."""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.launch.job import JobFiles
from bert_jax.launch.retry_policy import read_state
from bert_jax.runs.open_checkpoints import load_params
from bert_jax.runs.run_directory import open_run
from tests.processes.hosts import start
from tests.project import project_config, write_config

TIMEOUT = 600.0  # enough for a busy machine
STEPS = 16


def saved_often(project: Path) -> dict[str, Any]:
    values = project_config(project)
    values["mesh"] = {"platform": "cpu", "simulated_devices": 1}
    values["train"] |= {
        "phases": [values["train"]["phases"][0] | {"steps": STEPS}],
        "log_every": 4,
        "evaluation": None,
        "checkpoint": {"every": 4},
    }
    return values


def run_undisturbed(values: dict[str, Any], directory: Path) -> Path:
    """Runs a configuration outside a job, without interruption; returns the run directory."""
    run_dir, config = directory / "undisturbed", write_config(directory / "here.yaml", values)
    with start("pretrain", config, f"run_dir={run_dir}", count=1, directory=directory) as job:
        assert job.wait() == [0], job.said()
    return run_dir


def wait_until(condition: Callable[[], bool], said: Callable[[], str]) -> None:
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end, said()
        time.sleep(0.1)  # poll rarely: reading a bucket takes CPU time


def assert_done_as_undisturbed(
    files: JobFiles, ends: Sequence[str], run_dir: object, undisturbed: Path, *, said: str
) -> None:
    """Asserts that a job is done, the ends of its attempts, and equal parameters of both runs."""
    found = read_state(files)
    assert [record.end for record in found.attempts] == ends, said
    assert found.outcome == "done"
    jax.tree.map(np.testing.assert_array_equal, _params_of(run_dir), _params_of(undisturbed))


def processes_with(value: str) -> list[str]:
    """Returns the command lines of other processes with a text in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            matches = value.encode() in (process / "environ").read_bytes()
            if matches and int(process.name) != os.getpid():
                found.append((process / "cmdline").read_text())
    return found


def _params_of(run_dir: object) -> Any:
    return jax.device_get(load_params(open_run(str(run_dir)), checkpoint="last").params)
