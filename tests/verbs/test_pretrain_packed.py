"""Pretraining on packed rows through the command line."""

import shutil
from pathlib import Path

import pytest

from bert_jax.train.writer import read_metrics
from tests.project import ok, one_phase, refused, write_config


@pytest.mark.slow
def test_a_packed_run_resumes_and_refuses_another_packing(project: Path, tmp_path: Path) -> None:
    values = one_phase(
        project,
        steps=6,
        log_every=1,
        evaluation={"every": 6, "examples": 24},
        checkpoint={"every": 3},
    )
    values["train"]["phases"][0]["packing"] = {"max_examples": 4}
    config = write_config(tmp_path / "run.yaml", values)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    ok("pretrain", config, f"run_dir={whole}")
    shutil.copytree(whole, cut)
    shutil.rmtree(cut / "checkpoints" / "6")

    other = refused("pretrain", config, f"run_dir={cut}", "train.phases.0.packing.max_examples=3")
    assert "packing.max_examples: found 3, but the checkpoint's data position" in other

    (cut / "metrics.jsonl").unlink()
    ok("pretrain", config, f"run_dir={cut}")
    for kind, steps in (("train", [4, 5, 6]), ("validation", [6])):
        again = read_metrics(cut, kind=kind)
        assert [line["step"] for line in again] == steps
        assert again == [line for line in read_metrics(whole, kind=kind) if line["step"] > 3]
