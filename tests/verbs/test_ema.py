"""`train.ema`: a moving average of the parameters, and the option `--ema` of the verbs."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax.interop.importing import read_checkpoint
from bert_jax.runs.open_checkpoints import load_params
from bert_jax.runs.run_directory import open_run
from bert_jax.train.metrics_writer import read_metrics
from tests.project import ok, one_phase, refused, refuses, says, write_config

pytestmark = pytest.mark.slow

STEPS = 4
DECAY = 0.25  # reached after step 2
EMA = f"train.ema.decay={DECAY}"


def params(run: Path, step: object = "last", *, ema: bool = False) -> Any:
    return jax.device_get(load_params(open_run(run), checkpoint=str(step), ema=ema).params)


def assert_same(found: Any, expected: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def assert_near(found: Any, expected: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), found, expected)


def moved(average: Any, params: Any, decay: float) -> Any:
    return jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, average, params)


def shortened(run: Path, root: Path, *, to: int) -> Path:
    """Returns a copy of a run as if its process had been killed after the save of step `to`."""
    copy = shutil.copytree(run, root / f"killed_{run.name}")
    for step in range(to + 1, STEPS + 1):
        shutil.rmtree(copy / "checkpoints" / str(step))
    lines = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["step"] <= to]
    (copy / "metrics.jsonl").write_text("".join(kept))
    return copy


@pytest.fixture(scope="module")
def config(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    values = one_phase(
        project,
        steps=STEPS,
        checkpoint={"every": 1, "keep_last": STEPS},
        evaluation={"every": STEPS},
    )
    values["optimizer"]["warmup_steps"] = 0
    return write_config(tmp_path_factory.mktemp("ema") / "run.yaml", values)


@pytest.fixture(scope="module")
def plain(config: Path) -> Path:
    ok("pretrain", config, f"run_dir={config.parent / 'plain'}")
    return config.parent / "plain"


@pytest.fixture(scope="module")
def run(config: Path) -> Path:
    ok("pretrain", config, EMA, f"run_dir={config.parent / 'run'}")
    return config.parent / "run"


def test_the_average_follows_the_parameters_and_does_not_change_them(
    plain: Path, run: Path
) -> None:
    average = params(run, 1, ema=True)
    for step, decay in ((2, 2 / 11), (3, 3 / 12), (4, DECAY)):
        now = params(run, step)
        assert_same(now, params(plain, step))
        average = moved(average, now, decay)
        assert_near(params(run, step, ema=True), average)
    with pytest.raises(AssertionError):
        assert_near(average, now)


def test_a_resumed_run_has_the_same_average(config: Path, run: Path, tmp_path: Path) -> None:
    copy = shortened(run, tmp_path, to=2)
    ok("pretrain", config, EMA, f"run_dir={copy}")
    assert_same(params(copy, ema=True), params(run, ema=True))
    assert_same(params(copy), params(run))


def test_a_resumed_run_may_begin_and_end_its_average(
    config: Path, plain: Path, tmp_path: Path
) -> None:
    copy = shortened(plain, tmp_path, to=2)
    said = ok("pretrain", config, EMA, f"run_dir={copy}")
    assert re.search(r"^train.ema: .* checkpoint 2$", said, re.MULTILINE), said
    average = params(plain, 2)
    for step, decay in ((3, 3 / 12), (4, DECAY)):
        average = moved(average, params(plain, step), decay)
    assert_near(params(copy, ema=True), average)

    again = shortened(copy, tmp_path, to=3)
    said = ok("pretrain", config, f"run_dir={again}")
    assert f"train.ema.decay: {DECAY} up to step 3" in said
    assert_same(params(again), params(plain))
    for command in (("evaluate", again), ("fill-mask", again, "a [MASK]")):
        says(refused(*command, "--ema"), key="checkpoint.no_ema", place="--ema", run=again)
    line = refused("pretrain", config, EMA, f"run_dir={again}")
    says(line, key="run.other_setting", place="train.ema.decay")


def test_rules_of_evaluations_may_name_scores_of_the_average(
    config: Path, run: Path, tmp_path: Path
) -> None:
    by_average = "train.evaluation.best_by=ema.mlm_loss"
    without = ("pretrain", config, by_average, f"run_dir={tmp_path / 'new'}")
    line = refused(*without, EMA, "train.ema.evaluate=false")
    says(line, key="evaluation.unknown_score", place="train.evaluation.best_by", allowed="mlm_loss")

    copy = shortened(run, tmp_path, to=3)
    limit = "train.evaluation.stop_at={metric: ema.mlm_accuracy, at_least: 0}"
    assert "ema.mlm_accuracy" in ok("pretrain", config, EMA, by_average, limit, f"run_dir={copy}")
    manifest = json.loads((copy / "checkpoints" / str(STEPS) / "manifest.json").read_text())
    best = read_metrics(copy, kind="validation")[-1]["ema.mlm_loss"]
    assert manifest["score"][0] == pytest.approx(best)


def test_verbs_use_the_average_on_request(run: Path, tmp_path: Path) -> None:
    average = params(run, ema=True)
    said = ok("export", run, tmp_path / "hf", "--ema")
    assert "moving average" in said
    assert "moving average" in (tmp_path / "hf" / "README.md").read_text()
    assert_same(read_checkpoint(tmp_path / "hf").params, average)

    said = ok("average", run, "--ema", "--output", tmp_path / "averaged")
    assert "moving average of checkpoint" in said
    assert_same(params(tmp_path / "averaged"), average)
    text = "the [MASK] module"
    said, expected = (
        ok("fill-mask", *command, text).splitlines()[-1]
        for command in ((run, "--ema"), (tmp_path / "averaged",))
    )
    assert said == expected
    filled, plain = (bert_jax.load(run, ema=ema).fill_mask([text]) for ema in (True, False))
    assert filled == bert_jax.load(tmp_path / "averaged").fill_mask([text]) != plain

    line = read_metrics(run, kind="validation")[-1]
    assert line["ema.mlm_loss"] != line["mlm_loss"]
    for prefix, option, file in (
        ("", (), "evaluation"),
        ("ema.", ("--ema",), f"evaluations/validation-{STEPS}-ema"),
    ):
        assert ("moving average" in ok("evaluate", run, *option)) == bool(option)
        scores = json.loads((run / f"{file}.json").read_text())["scores"]
        assert scores == pytest.approx({name: line[f"{prefix}{name}"] for name in scores})
    with refuses("checkpoint.without_run", place="ema"):
        bert_jax.load(tmp_path / "hf", ema=True)
