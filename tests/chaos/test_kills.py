"""A run that is killed again and again ends as if it never had been, bit for bit."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from bert_jax.train.time_account import read_goodput
from tests.chaos.kills import (
    EVERY,
    Battlefield,
    Tally,
    kill_until,
    run_whole,
    undisturbed,
)
from tests.chaos.reference import Reference
from tests.project import project_config, write_config
from tests.run_config import DROPOUT


@pytest.fixture(scope="module")
def config(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two phases, saved at every third step: every second kill after the start meets a save."""
    values: dict[str, Any] = project_config(project)
    values["model"]["architecture"] |= DROPOUT
    values["mesh"] = {"platform": "cpu"}
    short, longer = values["train"]["phases"]
    values["train"] |= {
        "phases": [short | {"steps": 9}, longer | {"steps": 9}],
        "log_every": 1,
        "evaluation": {"every": 6, "examples": 16},
        "checkpoint": {"every": EVERY, "keep_last": 100},
        "example_log": True,
    }
    return write_config(tmp_path_factory.mktemp("config") / "run.yaml", values)


def test_a_few_kills_leave_no_trace_even_with_other_loader_workers(
    config: Path,
    tmp_path: Path,
) -> None:
    whole = tmp_path / "whole"
    # Half of it compiles, which those that are killed need not.
    seconds = run_whole(config, whole, 1) / 2
    field = Battlefield(
        *(config, 1, tmp_path, Reference(whole), seconds), at_last=("loader.workers=1",)
    )
    tally = Tally(1)
    kill_until(field, tally, kills=3, seed=0, deadline=time.monotonic() + 300)
    assert tally.kills == 3, tally
    account = read_goodput(tmp_path / "killed1-0")
    assert account is not None
    assert account.finished


@pytest.mark.chaos
def test_many_kills_of_one_two_and_four_processes_leave_no_trace(
    config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """CHAOS_KILLS, CHAOS_PROCESSES, CHAOS_MINUTES and CHAOS_SEED change it."""
    kills = int(os.environ.get("CHAOS_KILLS", "200"))
    counts = [int(count) for count in os.environ.get("CHAOS_PROCESSES", "1,2,4").split(",")]
    seconds = 60 * float(os.environ.get("CHAOS_MINUTES", "120"))
    seed = int(os.environ.get("CHAOS_SEED", "0"))
    began, tallies = time.monotonic(), list[Tally]()
    for done, count in enumerate(counts):
        field = undisturbed(config, tmp_path, count=count)
        deadline = began + seconds * (done + 1) / len(counts)
        part = kills // len(counts) + (done < kills % len(counts))
        tallies.append(Tally(count))
        try:
            kill_until(field, tallies[-1], kills=part, seed=seed, deadline=deadline)
        finally:
            with capsys.disabled():
                print(f"\n{tallies[-1]}")
    assert all(tally.kills for tally in tallies)
