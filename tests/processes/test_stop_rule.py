"""Two processes end a run at the same evaluation, and only the first writes MLPerf's log."""

import json
from pathlib import Path

import pytest
from mlperf_logging.compliance_checker import mlp_compliance

from bert_jax.train.metrics_writer import read_metrics
from bert_jax.train.mlperf_log import MLPERF_LOG
from tests.processes.hosts import start
from tests.project import one_phase, write_config

STEPS, EVERY, BATCH = 9, 3, 8


@pytest.fixture(scope="module")
def config(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose loss meets its target at the second of three evaluations."""
    sets = {"domain": str(project / "dataset32"), "general": str(project / "dataset48")}
    evaluation = {"every": EVERY, "examples": 24, "at_start": True, "sets": sets}
    values = one_phase(project, steps=STEPS, evaluation=evaluation, checkpoint={"every": 100})
    values["train"]["phases"][0]["seq_length"] = 48
    values["mesh"] = {"platform": "cpu"}
    values["optimizer"] = {"name": "lamb", "learning_rate": 0.02, "bias_correction": True}
    return write_config(tmp_path_factory.mktemp("config") / "run.yaml", values)


def scores_of(run: Path, name: str) -> dict[int, float]:
    return {line["step"]: line[name] for line in read_metrics(run, kind="validation")}


def test_two_processes_stop_at_the_same_evaluation_and_resume(config: Path, tmp_path: Path) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    with start("pretrain", config, f"run_dir={whole}", count=1, directory=tmp_path) as job:
        assert job.wait() == [0], job.said()
    losses = scores_of(whole, "general.mlm_loss")
    assert list(losses) == [0, 3, 6, 9]
    assert losses[3] > losses[6]
    limit = (losses[3] + losses[6]) / 2
    rule = f"train.evaluation.stop_at={{metric: general.mlm_loss, at_most: {limit}}}"
    for _ in range(2):  # the second command finds a finished run
        with start("pretrain", config, f"run_dir={run}", rule, count=2, directory=tmp_path) as job:
            assert job.wait() == [0, 0], job.said()
            assert "stopped at step 6: general.mlm_loss" in job[0].out
            assert "stopped" not in job[1].out
        assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["6"]
        found = scores_of(run, "general.mlm_loss")
        assert found == pytest.approx({step: losses[step] for step in (0, 3, 6)}, rel=1e-5)
    with start("pretrain", config, f"run_dir={run}", count=2, directory=tmp_path) as job:
        assert job.wait() == [0, 0], job.said()
    assert scores_of(run, "general.mlm_loss") == pytest.approx(losses, rel=1e-5)


def test_only_the_first_process_writes_the_log(config: Path, tmp_path: Path) -> None:
    rule = "train.evaluation.stop_at={metric: mlm_accuracy, at_least: 0}"
    log = "train.mlperf={organization: A lab, platform: cpu}"
    one_set = "train.evaluation.sets={}"
    run = tmp_path / "run"
    changes = (rule, log, one_set)
    with start("pretrain", config, f"run_dir={run}", *changes, count=2, directory=tmp_path) as job:
        assert job.wait() == [0, 0], job.said()
    lines = (run / MLPERF_LOG).read_text().splitlines()
    keys = [json.loads(line.removeprefix(":::MLLOG "))["key"] for line in lines]
    for key in ("init_start", "seed", "run_start", "block_start", "run_stop"):
        assert keys.count(key) == 1, key
    assert keys.count("eval_accuracy") == 2  # before the first step, and after the third
    checker = mlp_compliance.make_checker("training", "5.0.0", quiet=False, werror=True)
    mlp_compliance.main(str(run / MLPERF_LOG), "training_5.0.0/common.yaml", checker)
    assert list(checker.overwritable) == []
    (complaint,) = checker.not_overwritable  # the accuracy is below the benchmark's target
    assert "eval_accuracy" in complaint
