"""A shortened demo; the full demo, `make demo`, takes minutes."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.project import ok, refused, says

SHORT = (
    "train.phases.0.steps=6",
    "optimizer.warmup_steps=2",
    "train.log_every=3",
    "train.evaluation.examples=64",
    "examples.dupe_factor=1",
    "examples.workers=1",
    "model.architecture.num_hidden_layers=1",
)


@pytest.mark.slow
def test_the_demo_fills_masks_and_resumes(
    tmp_path: Path,
) -> None:
    arguments = ["demo", "--dir", tmp_path / "demo", *SHORT]
    said = ok(*arguments)
    assert "on 2 × 2 × 2 simulated devices" in said
    assert "step 6/6" in said
    assert re.search(r" gives 5\d\.\d% ± ", said)
    assert said.count("%  ") >= 3 * 4  # five candidates for each of three sentences
    assert f" {tmp_path / 'demo' / 'run'}. " in said
    program = re.search(r"^  (\S+) fill-mask ", said, re.MULTILINE)
    assert program is not None
    assert shutil.which(program[1])  # even if bert-jax is not on the PATH
    assert "pip install tensorboard" in said
    assert f"{tmp_path}/demo/run/report.html" in said

    run = tmp_path / "demo" / "run"
    assert (run / "checkpoints" / "6").is_dir()
    evaluation = json.loads((run / "evaluation.json").read_text())
    assert evaluation["step"] == 6
    assert 6.0 < evaluation["scores"]["mlm_loss"] < 8.0

    again = ok(*arguments)
    assert "step 3/6" not in again
    assert "tokenised" not in again


def test_a_demo_in_an_unwritable_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    line = refused("demo", "--dir", tmp_path / "file")
    says(line, key="file.unwritable", reason="Not a directory")
    says(line, place=f"{tmp_path}/file/text")
