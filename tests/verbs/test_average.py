"""`bert-jax average`: the weighted mean of the parameters of several models."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml

import bert_jax
from bert_jax.model.section import HeadsSection
from bert_jax.runs.open_checkpoints import load_params
from bert_jax.runs.run_directory import open_run
from tests.project import ok, refused, says
from tests.run_config import one_phase
from tests.tasks.runs import tiny_run


def params(run: Path, checkpoint: str = "last") -> Any:
    return jax.device_get(load_params(open_run(run), checkpoint=checkpoint).params)


def largest_difference(left: Any, right: Any) -> float:
    gaps = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), left, right)
    return max(jax.tree.leaves(gaps))


def test_checkpoints_of_a_run_and_models_are_averaged(project: Path, tmp_path: Path) -> None:
    config = one_phase(project, steps=3) | {"run_dir": str(tmp_path / "run")}
    config["train"]["checkpoint"] = {"every": 1, "keep_last": 3}
    config["optimizer"] = {"learning_rate": 1e-3}
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    ok("pretrain", path)
    run, smooth, merged = (tmp_path / name for name in ("run", "smooth", "merged"))
    steps = [params(run, step) for step in "123"]
    assert largest_difference(steps[0], steps[2]) > 1e-4

    said = ok("average", run, "--last", 2, "--output", smooth)
    assert "0.5" in said
    expected = jax.tree.map(lambda a, b: (a + b) / 2, steps[1], steps[2])
    assert largest_difference(params(smooth), expected) < 1e-7

    # An average, and a model of another program that is its start.
    ok("export", run, tmp_path / "hf", "--checkpoint", "1")
    ok("average", smooth, tmp_path / "hf", "--weights", "0.75,0.25", "--output", merged)
    expected = jax.tree.map(lambda a, b: 0.75 * a + 0.25 * b, expected, steps[0])
    assert largest_difference(params(merged), expected) < 1e-7
    found = json.loads((merged / "provenance.json").read_text())["averaged"]
    assert [(each["step"], each["weight"]) for each in found] == [(3, 0.75), (0, 0.25)]

    # Models are compared with the same masks.
    ok("average", run, run, "--output", tmp_path / "same")
    dataset = project / "dataset32"
    first, second = (
        bert_jax.evaluate(str(each), dataset=str(dataset)).scores
        for each in (run, tmp_path / "same")
    )
    assert first == pytest.approx(second, rel=1e-6)

    ok("export", merged, tmp_path / "out")
    line = refused("average", smooth, merged, "--weights", "0.5,0.4", "--output", tmp_path / "no")
    says(line, key="average.weights", place="--weights", sum=0.9)
    for bad in ("nan,nan", "inf,-inf", "1"):
        line = refused("average", run, smooth, "--weights", bad, "--output", tmp_path / "no")
        assert line.key in ("average.weights", "argument.value"), line
    line = refused("average", run, "--last", 4, "--output", tmp_path / "no")
    says(line, key="average.checkpoints", place="--last", count=3)
    line = refused("average", run, "--output", tmp_path / "no")
    says(line, key="average.models", place="MODEL")
    line = refused("average", run, tiny_run(tmp_path / "tiny"), "--output", tmp_path / "no")
    says(line, key="average.tokenizer", place="MODEL")
    assert not (tmp_path / "no").exists()


def test_models_that_differ_are_refused(tmp_path: Path) -> None:
    first = tiny_run(tmp_path / "first")
    deeper = tiny_run(tmp_path / "deeper", layers=2)
    line = refused("average", first, deeper, "--output", tmp_path / "no")
    says(line, key="average.architecture", place="MODEL", name="num_hidden_layers", found=2)
    task = HeadsSection(
        mlm=False, next_sentence=False, task="sequence_classification", labels=("a", "b")
    )
    tuned = tiny_run(tmp_path / "tuned", heads=task)
    line = refused("average", first, tuned, "--output", tmp_path / "no")
    says(line, key="average.heads", place="MODEL")
