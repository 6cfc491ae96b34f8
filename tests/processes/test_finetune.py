"""Several processes fine-tune, evaluate and predict like one, on uneven data."""

import json
from pathlib import Path
from typing import Any

import pytest

from bert_jax.train.metrics_writer import read_metrics
from tests.processes.hosts import start, start_one
from tests.processes.test_verbs import on_two
from tests.project import write_config
from tests.tasks.runs import tiny_config, write_table


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def alone(*arguments: object, directory: Path) -> None:
    """Runs a verb in one process, on one device."""
    host = start_one(*arguments, directory=directory)
    assert host.wait() == 0, host.err


def test_two_processes_fine_tune_and_predict_like_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """70 rows for training and 37 for evaluation do not fill the last batch of 16."""
    # One row length, so one program is compiled. test_pretrain.py tests dropout.
    values = tiny_config(tmp_path, epochs=1, log_every=1, max_length=8)
    values["mesh"] = {"platform": "cpu"}
    values["finetune"]["task"] |= {
        "train": str(write_table(tmp_path, 70, 3)),
        "dev": str(write_table(tmp_path, 37, 4)),
    }
    config = write_config(tmp_path / "config.yaml", values)
    one, two = tmp_path / "one", tmp_path / "two"
    alone("finetune", config, f"run_dir={one}", directory=tmp_path)
    # Parameters are split over the two processes.
    split = ("mesh.data=1", "mesh.fsdp=2")
    with start("finetune", config, f"run_dir={two}", *split, count=2, directory=tmp_path) as job:
        assert job.wait() == [0, 0], job.said()
        assert "best: step" in job[0].out
        # Process 1 prints only slow stages before it joins process 0.
        before = ("reading ", "waiting for the other processes")
        assert [line for line in job[1].out.splitlines() if not line.startswith(before)] == []
    for expected, found in zip(read_metrics(one), read_metrics(two), strict=True):
        kind = expected.pop("kind")
        assert found.pop("kind") == kind
        if kind not in ("speed", "goodput"):
            assert found == pytest.approx(expected, rel=1e-4)
    names = ("evaluation.json", "predictions/dev.jsonl", "report.html", "provenance.json")
    assert all((two / name).exists() for name in names)

    unlabelled = write_table(tmp_path, 5, 6)  # fewer rows than a batch: one process has none
    written = [tmp_path / f"{name}.jsonl" for name in ("one", "two")]
    on_two("predict", two, written[1], "--input", unlabelled, directory=tmp_path)
    alone("predict", two, written[0], "--input", unlabelled, directory=tmp_path)
    for found, expected in zip(*map(records, reversed(written)), strict=True):
        assert found.pop("probabilities") == pytest.approx(expected.pop("probabilities"), rel=1e-4)
        assert found == expected
    on_two("evaluate", two, directory=tmp_path)
    figures = json.loads((two / "evaluation.json").read_text())
    assert figures["examples"] == 37
    alone("evaluate", two, directory=tmp_path)
    assert figures == json.loads((two / "evaluation.json").read_text())
