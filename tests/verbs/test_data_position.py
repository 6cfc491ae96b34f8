"""A run's data position: an interrupted run continues with the next row."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.train.compiled import StepPrograms
from bert_jax.train.metrics_writer import read_metrics
from bert_jax.train.time_account import read_goodput
from tests.project import MESH, ok, one_phase, project_config, refused, says, write_config

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def small(project: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A configuration with a small dataset: one epoch has only a few steps."""
    root = tmp_path_factory.mktemp("small")
    values = project_config(project)
    text = max((project / "text").glob("*.txt"), key=lambda path: path.stat().st_size)
    (root / "text.txt").write_text(text.read_text()[:4_000])
    values["examples"] |= {
        "input": [str(root / "text.txt")],
        "output": str(root / "dataset"),
        "validation_fraction": 0.0,
        "max_seq_length": 32,
    }
    values["mesh"] = MESH
    values["train"] |= {
        "phases": [{"dataset": str(root / "dataset"), "steps": 12, "batch_size": 8}],
        "log_every": 2,
        "evaluation": None,
        "checkpoint": {"every": 4},
    }
    values["train"]["phases"][0]["seq_length"] = 32
    ok("examples", write_config(root / "examples.yaml", values))
    return values


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The rows of each step that this process trains, in order: tokens [rows, length]."""
    found: list[np.ndarray] = []
    run_step = StepPrograms.__call__

    def recorded(programs: StepPrograms, state: Any, batch: Any, *others: Any) -> Any:
        found.append(jax.device_get(batch["input_ids"]))  # explicit: the run refuses others
        return run_step(programs, state, batch, *others)

    monkeypatch.setattr(StepPrograms, "__call__", recorded)
    return found


def cut_back(run_dir: Path, copy: Path, *, step: int) -> Path:
    """Returns a copy of a run after a kill. Its files have steps beyond its last checkpoint."""
    shutil.copytree(run_dir, copy)
    for checkpoint in (copy / "checkpoints").iterdir():
        if int(checkpoint.name) > step:
            shutil.rmtree(checkpoint)
    return copy


@pytest.mark.parametrize(
    "packing", [None, pytest.param({"max_examples": 4}, marks=pytest.mark.chaos)]
)
def test_an_interrupted_run_trains_every_row_once_and_in_order(
    small: dict[str, Any], tmp_path: Path, packing: dict[str, int] | None, rows: list[np.ndarray]
) -> None:
    values = json.loads(json.dumps(small))
    values["train"]["phases"][0]["packing"] = packing
    config = write_config(tmp_path / "run.yaml", values)
    whole = tmp_path / "whole"
    ok("pretrain", config, f"run_dir={whole}")
    expected = np.concatenate(rows)
    rows.clear()
    cut = cut_back(whole, tmp_path / "cut", step=4)
    other = ("mesh.data=2", "mesh.tensor=2", "mesh.fsdp=2", "train.phases.0.batch_size=16")
    ok("pretrain", config, f"run_dir={cut}", *other)
    found = np.concatenate(rows)
    assert len(found) == 8 * 16
    np.testing.assert_array_equal(found[: 8 * 8], expected[4 * 8 :])
    assert [line["step"] for line in read_metrics(cut, kind="train")] == [2, 4, 6, 8, 10, 12]


def test_a_run_accounts_for_its_time_and_sets_damaged_lines_aside(
    small: dict[str, Any], tmp_path: Path
) -> None:
    config = write_config(tmp_path / "run.yaml", small)
    run_dir = tmp_path / "run"
    output = ok("pretrain", config, f"run_dir={run_dir}")
    assert "where the time went: " in output
    account = read_goodput(run_dir)
    assert account is not None
    assert account.finished
    assert sum(account.shares.values()) == pytest.approx(1)
    assert account.seconds["train"] > 0
    assert account.seconds["start"] > 0
    assert account.seconds["lost"] == account.seconds["down"] == 0
    # If lines in the middle are damaged, all other lines are still read.
    metrics = run_dir / "metrics.jsonl"
    first, *others = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(b"".join([first, b"\xff\xfe\n", b'{"loss": 1}\n', *others]))
    before = read_metrics(run_dir)
    assert len(before) == len(others) + 1
    output = ok("pretrain", config, f"run_dir={run_dir}", "train.phases.0.steps=13")
    assert f"{metrics}: moved 2 damaged or foreign lines to {run_dir}" in output
    assert read_metrics(run_dir)[: len(before)] == before
    assert (run_dir / "metrics.damaged").read_bytes() == b'\xff\xfe\n{"loss": 1}\n'


def test_changed_data_are_refused_or_used_with_a_warning(
    small: dict[str, Any], tmp_path: Path
) -> None:
    values = json.loads(json.dumps(small))
    values["train"]["phases"][0] |= {"dataset": str(tmp_path / "dataset"), "steps": 4}
    values["examples"]["output"] = str(tmp_path / "dataset")
    config, run_dir = write_config(tmp_path / "run.yaml", values), tmp_path / "run"
    ok("examples", config)
    ok("pretrain", config, f"run_dir={run_dir}")
    more = (f"run_dir={run_dir}", "train.phases.0.steps=20")
    before = (run_dir / "config.yaml").read_bytes()

    line = refused("pretrain", config, *more, "seed=4")
    says(line, key="run.other_setting", place="seed")
    says(line, found=4, expected=3)
    assert "--allow-data-change" in line

    shutil.rmtree(tmp_path / "dataset")  # replaced by another dataset of the same name
    ok("examples", config, "examples.dupe_factor=2")
    line = refused("pretrain", config, *more)
    says(line, key="resume.data_changed", place="dataset")
    assert (run_dir / "config.yaml").read_bytes() == before

    output = ok("pretrain", config, *more, "seed=4", "--allow-data-change")
    assert "--allow-data-change: dataset was " in output
    assert "seed was 3, is 4; phase 0 had read 32 rows and resumes at row 0 " in output
    changes = json.loads((run_dir / "provenance.json").read_text())["changes"]
    assert {change["key"] for change in changes} == {
        "seed",
        "train.phases.0.dataset",
        "train.phases.0.steps",
    }
    # The run has recorded the new data, so it resumes without the option.
    output = ok("pretrain", config, *more, "seed=4")
    assert "--allow-data-change" not in output


def test_changed_masking_continues_with_the_next_row(small: dict[str, Any], tmp_path: Path) -> None:
    config, run_dir = write_config(tmp_path / "run.yaml", small), tmp_path / "run"
    same = (f"run_dir={run_dir}", "train.phases.0.max_predictions=5")
    ok("pretrain", config, *same, "train.phases.0.steps=4")
    other = (*same, "train.phases.0.steps=8", "objective.masking.rate=0.3")
    line = refused("pretrain", config, *other)
    says(line, key="run.other_setting", place="objective.masking.rate")
    output = ok("pretrain", config, *other, "--allow-data-change")
    said = "masking.rate was 0.15, is 0.3; phase 0 had read 32 rows and resumes at row 32"
    assert said in output


def test_a_packed_run_resumes_and_refuses_another_packing(project: Path, tmp_path: Path) -> None:
    evaluation, checkpoint = {"every": 6, "examples": 24}, {"every": 3}
    values = one_phase(project, steps=6, evaluation=evaluation, checkpoint=checkpoint, log_every=1)
    values["train"]["phases"][0]["packing"] = {"max_examples": 4}
    config = write_config(tmp_path / "run.yaml", values)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    ok("pretrain", config, f"run_dir={whole}")
    cut_back(whole, cut, step=3)

    other = refused("pretrain", config, f"run_dir={cut}", "train.phases.0.packing.max_examples=3")
    says(other, key="resume.data_changed", place="packing.max_examples", found=3, expected=4)

    (cut / "metrics.jsonl").unlink()
    ok("pretrain", config, f"run_dir={cut}")
    for kind, steps in (("train", [4, 5, 6]), ("validation", [6])):
        again = read_metrics(cut, kind=kind)
        assert [line["step"] for line in again] == steps
        assert again == [line for line in read_metrics(whole, kind=kind) if line["step"] > 3]
