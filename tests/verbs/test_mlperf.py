"""The stop rule, and the log of MLPerf Training's BERT benchmark, read by MLPerf's own programs."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlperf_logging.compliance_checker import mlp_compliance
from mlperf_logging.package_checker.seed_checker import SeedChecker
from mlperf_logging.rcp_checker import rcp_checker

from bert_jax.config import load_config
from bert_jax.text import load_wordpiece
from bert_jax.train import compiled, evaluations
from bert_jax.train.metrics_writer import read_metrics
from bert_jax.train.mlperf_log import MLPERF_LOG
from tests.corpus import SPECIAL, WORDS
from tests.project import MESH, ROOT, invoke, ok, project_config, refused, write_config

RULES = "5.0.0"  # the last rules with BERT
BATCH, EVERY, STEPS = 8, 4, 24


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on TFRecords of a text in which five of six words are equal.

    A model that has learned how often each word occurs predicts more than 72% of the masks.
    """
    root = tmp_path_factory.mktemp("mlperf")
    rng = np.random.default_rng(0)
    documents = [
        "\n".join(f"the the the the the {word}" for word in rng.choice(WORDS[1:-1], 6))
        for _ in range(60)
    ]
    (root / "text").mkdir()
    (root / "text" / "all.txt").write_text("\n\n".join(documents) + "\n")
    vocabulary = root / "vocab.txt"
    vocabulary.write_text("\n".join([*SPECIAL, *WORDS]) + "\n")
    load_wordpiece(vocabulary, lower_case=True).save(root / "tokenizer")
    values = project_config(root)
    values["mesh"] = MESH
    values["examples"]["dupe_factor"] = 4
    values["optimizer"] = {"name": "lamb", "learning_rate": 0.004, "bias_correction": True}
    values["optimizer"] |= {"warmup_steps": 6, "warmup_start": -2}
    records = root / "records"
    phase = {"dataset": f"{records}/*", "steps": STEPS, "seq_length": 32, "batch_size": BATCH}
    evaluation = {"every": EVERY, "examples": 24, "at_start": True}
    evaluation["stop_at"] = {"metric": "mlm_accuracy", "at_least": 0.72}
    mlperf = {"organization": "A lab", "platform": "cpu", "caches_cleared": True}
    values["train"] |= {"phases": [phase], "evaluation": evaluation, "mlperf": mlperf}
    path = write_config(root / "run.yaml", values)
    ok("examples", path, "--tfrecords", records)
    for split, name in (("train", "part-00000-of-00001"), ("validation", "validation.eval_10k")):
        next(records.glob(f"{split}.*")).rename(records / name)  # names of MLPerf's files
    return path


@pytest.fixture(scope="module")
def run(config: Path) -> Path:
    """A run that reaches its target."""
    run_dir = config.parent / "run"
    assert "mlm_accuracy" in ok("pretrain", config, f"run_dir={run_dir}")
    return run_dir


def log_of(run_dir: Path) -> list[dict[str, Any]]:
    lines = (run_dir / MLPERF_LOG).read_text().splitlines()
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]


def values_of(run_dir: Path) -> dict[str, Any]:
    """Returns the values of the log that are not times."""
    return {line["key"]: line["value"] for line in log_of(run_dir) if line["value"] is not None}


def complaints(run_dir: Path) -> list[str]:
    """Returns what MLPerf's compliance checker finds wrong."""
    checker = mlp_compliance.make_checker("training", RULES, quiet=False, werror=True)
    log, rules = str(run_dir / MLPERF_LOG), f"training_{RULES}/common.yaml"
    valid, *_ = mlp_compliance.main(log, rules, checker)
    found = [*checker.overwritable.values(), *checker.not_overwritable]
    assert valid == (not found)
    return found


def scores_of(run_dir: Path) -> dict[int, float]:
    return {line["step"]: line["mlm_accuracy"] for line in read_metrics(run_dir, kind="validation")}


def test_the_run_evaluates_at_the_interval_and_stops_at_its_target(run: Path) -> None:
    scores = scores_of(run)
    *before, last = scores
    assert list(scores) == list(range(0, last + 1, EVERY))
    assert last < STEPS
    assert scores[last] >= 0.72
    assert all(scores[step] < 0.72 for step in before)
    assert (run / "checkpoints" / str(last)).is_dir()


def test_mlperfs_checkers_accept_the_log(run: Path) -> None:
    assert complaints(run) == []
    last = max(scores_of(run))
    found = rcp_checker.read_submission_file(str(run / MLPERF_LOG), RULES, use_train_samples=True)
    assert found == (0, last * BATCH, BATCH, "bert")
    found = rcp_checker.read_submission_file(str(run / MLPERF_LOG), RULES, use_train_samples=False)
    assert found == (0, last * BATCH, BATCH, "bert")
    assert SeedChecker(RULES).check_seeds([str(run / MLPERF_LOG)])


def test_the_log_has_the_true_values_and_moments(run: Path) -> None:
    last = max(scores_of(run))
    expected = {
        "submission_benchmark": "bert",
        "submission_org": "A lab",
        "submission_division": "closed",
        "submission_status": "cloud",
        "submission_platform": "cpu",
        "cache_clear": True,
        "seed": 3,
        "global_batch_size": BATCH,
        "gradient_accumulation_steps": 1,
        "opt_base_learning_rate": 0.004,
        "opt_learning_rate_training_steps": STEPS,
        "num_warmup_steps": 6,
        "start_warmup_step": -2,
        "opt_lamb_beta_2": 0.999,
        "train_samples": last * BATCH,
        "eval_samples": 24,
    }
    found = values_of(run)
    assert {name: found[name] for name in expected} == expected
    log = log_of(run)
    times = [line["time_ms"] for line in log if line["key"] != "init_start"]
    assert times == sorted(times)
    first = next(at for at, line in enumerate(log) if line["key"] == "run_start")
    assert log[first - 1]["key"] == "init_stop"
    # Sample 1 is the first sample of the run.
    moments = [(line["key"], line["metadata"]) for line in log[first + 1 :]]
    shown = [
        (key, data.get("first_epoch_num", data.get("epoch_num")), data.get("epoch_count"))
        for key, data in moments
    ]
    evaluation = ("eval_start", "eval_accuracy", "eval_stop")
    wanted: list[tuple[str, int | None, int | None]] = [(key, 0, None) for key in evaluation]
    for step in range(0, last, EVERY):
        begin, end = step * BATCH + 1, (step + EVERY) * BATCH
        wanted += [("block_start", begin, EVERY * BATCH), ("block_stop", begin, None)]
        wanted += [(key, end, None) for key in evaluation]
    assert shown == [*wanted, ("train_samples", None, None), ("run_stop", None, None)]
    assert moments[-1][1]["status"] == "success"
    accuracies = [line["value"] for line in log if line["key"] == "eval_accuracy"]
    assert accuracies == list(scores_of(run).values())


def test_everything_compiles_before_the_clock_starts(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, clock = tmp_path / "run", []
    for module, name in ((compiled, "lower_train_step"), (evaluations, "lower_evaluation_step")):
        lower = getattr(module, name)

        def record(*arguments: Any, lower: Any = lower, **named: Any) -> Any:
            clock.append("run_start" in (run_dir / MLPERF_LOG).read_text())
            return lower(*arguments, **named)

        monkeypatch.setattr(module, name, record)
    ok("pretrain", config, f"run_dir={run_dir}", "train.phases.0.steps=4")
    assert clock == [False, False]


def test_a_run_that_misses_its_target_is_aborted(config: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    ok("pretrain", config, f"run_dir={run_dir}", "train.phases.0.steps=4")
    assert log_of(run_dir)[-1]["metadata"]["status"] == "aborted"
    (complaint,) = complaints(run_dir)
    assert "eval_accuracy" in complaint


class Killed(Exception):
    """Simulates the end of the process."""


def test_a_resumed_run_continues_the_log(
    config: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("pretrain", config, f"run_dir={tmp_path / 'run'}")

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:  # before its clock starts
        patch.setattr("bert_jax.train.mlperf_log.MlperfLog.started", die)
        assert isinstance(invoke(*command).exception, Killed)
    with monkeypatch.context() as patch:  # after step 4 and its checkpoint
        patch.setattr("bert_jax.train.progress_display.ProgressDisplay.evaluated", die)
        patch.setattr("bert_jax.train.evaluations.Evaluations.make_up", lambda *_: False)
        assert isinstance(invoke(*command, "train.checkpoint.every=3").exception, Killed)
    ok(*command)
    assert complaints(tmp_path / "run") == []
    found, expected = values_of(tmp_path / "run"), values_of(run)
    assert found == expected
    keys = [line["key"] for line in log_of(tmp_path / "run")]
    assert [keys.count(key) for key in ("init_start", "run_start", "run_stop")] == [1, 1, 1]
    before = (tmp_path / "run" / MLPERF_LOG).read_bytes()
    output = ok(*command)  # nothing is left to do
    assert "stopped at step" in output
    assert (tmp_path / "run" / MLPERF_LOG).read_bytes() == before


def test_a_higher_target_continues_a_stopped_run(config: Path, tmp_path: Path) -> None:
    alone = [f"run_dir={tmp_path / 'run'}", "train.mlperf=null", "train.phases.0.steps=8"]
    target = "train.evaluation.stop_at={{metric: loss, at_most: {}}}"
    ok("pretrain", config, *alone, target.format(1000))
    assert max(scores_of(tmp_path / "run")) == EVERY
    ok("pretrain", config, *alone, target.format(0))
    assert list(scores_of(tmp_path / "run")) == [0, 4, 8]


@pytest.mark.parametrize(
    ("override", "key", "place"),
    [
        ("optimizer.name=adamw", "mlperf.setting", "optimizer.name"),
        ("optimizer.decay_fraction=0.5", "mlperf.setting", "optimizer.decay_fraction"),
        (
            "train.evaluation.stop_at=null",
            "mlperf.setting",
            "train.evaluation.stop_at.metric",
        ),
        (
            "train.evaluation.stop_at.at_most=1",
            "evaluation.stop_at",
            "train.evaluation.stop_at.at_least",
        ),
    ],
)
def test_settings_that_the_log_cannot_describe_are_refused(
    config: Path, tmp_path: Path, override: str, key: str, place: str
) -> None:
    refusal = refused("pretrain", config, f"run_dir={tmp_path / 'run'}", override)
    assert refusal.key == key
    assert place in str(refusal.place)
    assert not (tmp_path / "run").exists()


def test_an_unknown_score_is_refused_before_training(config: Path, tmp_path: Path) -> None:
    more = ("train.mlperf=null", "train.evaluation.stop_at.metric=mlm_acuracy")
    refusal = refused("pretrain", config, f"run_dir={tmp_path / 'run'}", *more)
    assert refusal.key == "evaluation.unknown_score"
    assert "mlm_accuracy" in str(refusal)


def presets() -> dict[int, list[str]]:
    """Returns the overrides of the page by batch size."""
    page = (ROOT / "docs" / "howto" / "mlperf.md").read_text()
    rows = re.findall(r"^\| ([\d,]+) \| [\d,]+ \| (?:none|`(.*)`) \|$", page, re.MULTILINE)
    return {int(batch.replace(",", "")): overrides.split() for batch, overrides in rows}


def test_the_presets_equal_the_reference_convergence_points() -> None:
    checker = rcp_checker.RCP_Checker("training", RULES, "bert", verbose=False)
    points = {point["BS"]: point["Hyperparams"] for point in checker.rcp_data.values()}
    found = presets()
    assert list(found) == [256, 448, 1536, 3072, 4096, 8192, 16384]
    for batch, overrides in found.items():
        config = load_config("configs/pretrain/mlperf.yaml", overrides)
        assert config.train is not None
        (phase,), optimizer = config.train.phases, config.optimizer
        assert (optimizer.name, optimizer.bias_correction) == ("lamb", True)
        assert (phase.seq_length, phase.max_predictions, phase.batch_size) == (512, 76, batch)
        point = points[batch]
        assert {
            "opt_base_learning_rate": optimizer.learning_rate,
            "opt_epsilon": optimizer.eps,
            "opt_learning_rate_training_steps": phase.steps,
            "num_warmup_steps": optimizer.warmup_steps,
            "start_warmup_step": optimizer.warmup_start,
            "opt_lamb_beta_1": optimizer.beta1,
            "opt_lamb_beta_2": optimizer.beta2,
            "opt_lamb_weight_decay_rate": optimizer.weight_decay,
        } == {name: point[name] for name in point if name != "gradient_accumulation_steps"}
        samples = math.floor(0.05 * (230.23 * batch + 3_000_000) / 25_000) * 25_000
        evaluation = config.train.evaluation
        assert evaluation is not None
        assert evaluation.every == math.ceil(samples / batch)
        assert (evaluation.examples, evaluation.at_start) == (10_000, True)
        assert evaluation.stop_at is not None
        assert (evaluation.stop_at.metric, evaluation.stop_at.at_least) == ("mlm_accuracy", 0.72)
