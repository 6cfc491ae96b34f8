"""Opening a run's checkpoints."""

import shutil
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import pytest

from bert_jax.runs.open_checkpoints import find_step, open_checkpoints, read_checkpoints
from bert_jax.task import Params
from bert_jax.train.checkpointer import Checkpointer
from tests.project import refuses
from tests.train.checkpoints import abstract, save_steps, state_at


def test_reading_does_not_change_a_run_without_checkpoints(tmp_path: Path) -> None:
    with open_checkpoints(tmp_path) as checkpoints:
        assert checkpoints.on_disk.newest() is None
        assert checkpoints.on_disk.steps() == []
        assert checkpoints.on_disk.best() is None
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with checkpoints 4 and 8; `goes_on` adds 12."""
    save_steps(tmp_path / "checkpoints")
    (tmp_path / "checkpoints/12").rename(tmp_path / "to come")
    return tmp_path


def goes_on(run: Path) -> None:
    """Adds checkpoint 12 and deletes 4 and 8, like a run after a save."""
    (run / "to come").rename(run / "checkpoints/12")
    for step in ("4", "8"):
        shutil.rmtree(run / "checkpoints" / step)


@pytest.mark.parametrize("after", ["scan", "choice"])
def test_reading_retries_if_the_run_deletes_the_checkpoint(run: Path, after: str) -> None:
    chosen: list[int | None] = []

    def read(checkpoints: Checkpointer) -> Params:
        if not chosen and after == "scan":
            goes_on(run)
        chosen.append(None)  # stays None if `newest` raises an error
        step = chosen[-1] = checkpoints.on_disk.newest("params")
        assert step is not None
        if len(chosen) == 1:
            goes_on(run)
        return checkpoints.restore_params(abstract().params, step=step)

    params = read_checkpoints(run, read)
    assert chosen == ([None, 12] if after == "scan" else [8, 12])
    for found, wanted in zip(
        jax.tree.leaves(params), jax.tree.leaves(state_at(12).params), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


def test_reading_gives_up_on_fast_deletion_in_one_line(run: Path) -> None:
    def read(checkpoints: Checkpointer) -> None:
        step = checkpoints.on_disk.steps()[-1]
        save_steps(run / "checkpoints", [step + 4])
        shutil.rmtree(run / "checkpoints" / str(step))
        checkpoints.restore_params(abstract().params, step=step)

    with refuses("checkpoint.deleted", place=run / "checkpoints", reads=5):
        read_checkpoints(run, read)


def test_an_idle_runs_damaged_checkpoint_is_refused(run: Path) -> None:
    tried: list[int] = []

    def read(checkpoints: Checkpointer) -> None:
        tried.append(8)
        checkpoints.restore_params(abstract().params, step=8)

    (run / "checkpoints/8/manifest.json").write_text("{}")
    with refuses("checkpoint.no_item", place=run / "checkpoints/8/params"):
        read_checkpoints(run, read)
    assert tried == [8]


def test_a_step_may_be_given_as_a_number(run: Path) -> None:
    with open_checkpoints(run) as checkpoints:
        assert find_step(checkpoints, cast(Any, 8), where="run") == 8
        with refuses("checkpoint.unknown", found="9", allowed=["last", "best", "4", "8"]):
            find_step(checkpoints, cast(Any, 9), where="run")
