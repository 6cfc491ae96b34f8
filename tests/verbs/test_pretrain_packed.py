"""Pretraining on packed rows through the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bert_jax.cli import cli
from bert_jax.train.writer import read_metrics
from tests.project import project_config, write_config


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


@pytest.mark.slow
def test_a_packed_run_resumes_and_refuses_another_packing(project: Path, tmp_path: Path) -> None:
    values = project_config(project)
    phase = values["train"]["phases"][0] | {"steps": 6, "packing": {"max_examples": 4}}
    values["mesh"] = {"platform": "cpu", "data": 8}
    values["train"] |= {
        "phases": [phase],
        "log_every": 1,
        "evaluation": {"every": 6, "examples": 24},
        "checkpoint": {"every": 3},
    }
    config = write_config(tmp_path / "run.yaml", values)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    result = invoke("pretrain", config, f"run_dir={whole}")
    assert result.exit_code == 0, result.output
    shutil.copytree(whole, cut)
    shutil.rmtree(cut / "checkpoints" / "6")

    other = invoke("pretrain", config, f"run_dir={cut}", "train.phases.0.packing.max_examples=3")
    assert other.exit_code == 2
    assert "packing.max_examples: found 3, but the checkpoint's data position" in other.stderr

    (cut / "metrics.jsonl").unlink()
    result = invoke("pretrain", config, f"run_dir={cut}")
    assert result.exit_code == 0, result.output
    for kind, steps in (("train", [4, 5, 6]), ("validation", [6])):
        again = read_metrics(cut, kind=kind)
        assert [line["step"] for line in again] == steps
        assert again == [line for line in read_metrics(whole, kind=kind) if line["step"] > 3]
