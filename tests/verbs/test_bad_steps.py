"""NaN and spikes in real runs of the command: skip, rollback, stop, dump and resume."""

import itertools
import json
import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.runs.open_checkpoints import load_params
from bert_jax.runs.run_directory import open_run
from bert_jax.tasks.predictor import Predictor
from bert_jax.train.compiled import StepPrograms
from bert_jax.train.metrics_writer import read_metrics
from tests.parallel.test_replica_checksum import corrupt
from tests.project import DROPOUT, invoke, ok, one_phase, refused, says, write_config
from tests.tasks.runs import tiny_config
from tests.train.dumps import loaded_as_documented
from tests.train.poison import (
    mark,
    nan,
    poison_gradient,
    poison_pretraining,
    spike,
)

pytestmark = pytest.mark.slow

STEPS = 16


@pytest.fixture(scope="module")
def config(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 16 steps with a checkpoint every 6 steps; spikes are found in a window of 8."""
    values = one_phase(
        project,
        steps=STEPS,
        evaluation=None,
        checkpoint={"every": 6, "keep_last": 9},
        bad_steps={"window": 8},
        log_every=1,
    )
    values["model"]["architecture"] |= DROPOUT
    return write_config(tmp_path_factory.mktemp("config") / "run.yaml", values)


def bad_lines(run_dir: Path) -> list[dict[str, Any]]:
    return read_metrics(run_dir, kind="bad_step")


def losses(run_dir: Path) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in read_metrics(run_dir, kind="train")}


def assert_same_run(found: Path, expected: Path) -> None:
    """Asserts equal metrics and parameters, bit for bit."""
    assert losses(found) == losses(expected)
    assert bad_lines(found) == bad_lines(expected)
    ours, theirs = (
        jax.device_get(load_params(open_run(run), checkpoint="last").params)
        for run in (found, expected)
    )
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def resumed_at(step: int, run_dir: Path, copy: Path) -> Path:
    """Returns a copy of a run as if it had been killed after the checkpoint of `step`."""
    shutil.copytree(run_dir, copy)
    for checkpoint in (copy / "checkpoints").iterdir():
        if int(checkpoint.name) > step:
            shutil.rmtree(checkpoint)
    return copy


SKIP_SPIKES = "train.bad_steps.on_spike=skip"

# Overrides for runs without bit-for-bit checks. Without dropout, programs compile in half the time.
PLAIN = [f"model.architecture.{name}=0.0" for name in DROPOUT]


def test_skipped_nan_and_spike_survive_a_kill_bit_for_bit(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second bad step comes right before a checkpoint, so the restored history contains it.
    poison_pretraining(monkeypatch, {4: nan, 5: nan, 13: spike})
    run_dir = tmp_path / "run"
    said = ok("pretrain", config, f"run_dir={run_dir}", SKIP_SPIKES)
    assert "step 5: loss nan, gradient_norm nan: skipped" in said
    lines = bad_lines(run_dir)
    assert [(line["step"], line["at"]) for line in lines] == [(5, 5), (6, 6), (14, 14)]
    assert all(line["skip"] == 1 for line in lines)
    assert lines[-1]["gradient_norm"] > 5 * lines[-1]["gradient_norm_limit"]
    assert "step 14: loss" in said
    applied = [step for step in range(1, STEPS + 1) if step not in (5, 6, 14)]
    assert sorted(losses(run_dir)) == applied
    assert all(np.isfinite(loss) for loss in losses(run_dir).values())
    assert not list(run_dir.glob("bad_step_*"))

    killed = resumed_at(6, run_dir, tmp_path / "killed")
    again = ok("pretrain", config, f"run_dir={killed}", SKIP_SPIKES)
    assert "resuming at step 6 of 16" in again
    assert_same_run(killed, run_dir)


def test_too_many_skips_stop_and_the_dump_loads_elsewhere(
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    read = poison_pretraining(monkeypatch, {at: nan for at in (1, 2, 3, 4, 7)})
    run_dir = tmp_path / "run"
    line = refused("pretrain", config, f"run_dir={run_dir}", *PLAIN, code=1)
    assert max(read) < 7
    (folder,) = run_dir.glob("bad_step_*")
    reason = "loss nan, gradient_norm nan, after 3 skips in 8 steps"
    says(line, key="step.bad", place="step 5", reason=reason, folder=folder)
    elsewhere = tmp_path / "copied"
    shutil.copytree(folder, elsewhere)
    shutil.rmtree(run_dir)
    capsys.readouterr()
    found = loaded_as_documented(elsewhere)
    tensors, gradients = capsys.readouterr().out.splitlines()
    assert tensors == f"loss nan, gradient_norm nan {found.bad_tensors}"
    assert found.bad_tensors == ["masked_lm_weights"]
    assert np.isnan(found.tensors["masked_lm_weights"][0, 0])
    assert found.tensors["input_ids"].shape[0] == 8
    assert gradients == str(found.bad_gradients)
    assert "mlm/bias" in found.bad_gradients


def test_a_nan_gradient_with_finite_loss_is_found(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison_gradient(monkeypatch)
    poison_pretraining(monkeypatch, {8: mark})
    run_dir = tmp_path / "run"
    stop = "train.bad_steps.on_non_finite=stop"
    line = refused("pretrain", config, f"run_dir={run_dir}", stop, *PLAIN, code=1)
    assert line.key == "step.bad"
    says(line, place="step 9", reason="gradient_norm nan")
    says(line, last=6)
    dump = loaded_as_documented(run_dir / "bad_step_9")
    assert dump.bad_tensors == []
    assert dump.bad_gradients
    assert np.isfinite(float(dump.record["figures"]["loss"]))
    assert dump.tensors["step"] == 8


ROLLBACK = "train.bad_steps.on_non_finite=rollback"


def test_a_rollback_skips_the_data_even_after_a_kill(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = poison_pretraining(monkeypatch, {8: nan})
    run_dir = tmp_path / "run"
    said = ok("pretrain", config, f"run_dir={run_dir}", ROLLBACK)
    assert f"step 9: loss nan, gradient_norm nan; written to {run_dir / 'bad_step_9'}" in said
    assert "step 9: back to step 6; skipping rows 48 to 71 of phase 0" in said
    assert [(line["step"], line["at"]) for line in bad_lines(run_dir)] == [(6, 9)]
    # Batches 6 to 8 were read only once. The 16 steps used batches 0 to 5 and 9 to 18.
    assert read.count(8) == 1
    assert sorted(losses(run_dir)) == list(range(1, STEPS + 1))
    last = json.loads(next((run_dir / "checkpoints" / "16").glob("progress/*")).read_text())
    assert last["position"]["example_index"] == 19 * 8

    killed = resumed_at(6, run_dir, tmp_path / "right_after_it")
    del read[:]
    rollbacks = killed / "rollbacks.json"
    whole = rollbacks.read_text()
    assert whole.count('"example_index": 72') == 1
    rollbacks.write_text(whole.replace('"example_index": 72', '"example_index": 32'))
    said = refused("pretrain", config, f"run_dir={killed}", ROLLBACK)
    says(said, key="file.changed", place=str(rollbacks))
    assert not read
    rollbacks.write_text(whole)
    # Simulates a kill after writing rollbacks.json and before writing metrics.jsonl.
    metrics = killed / "metrics.jsonl"
    kept = [line for line in metrics.read_text().splitlines(True) if '"bad_step"' not in line]
    metrics.write_text("".join(kept))
    ok("pretrain", config, f"run_dir={killed}", ROLLBACK)
    assert min(read) == 9
    assert_same_run(killed, run_dir)


def diverge_in(patch: pytest.MonkeyPatch, evaluations: Collection[int]) -> None:
    """Makes some evaluations of a fine-tuning run use NaN parameters."""
    numbers = itertools.count()

    def diverging(predict: Any) -> Any:
        def diverged(self: Predictor, params: Any, split: Any) -> Any:
            if next(numbers) in evaluations:
                params = jax.tree.map(lambda leaf: leaf * np.nan, params)
            return predict(self, params, split)

        return diverged

    for name in ("__call__", "stream"):  # of all records at once, and of some at a time
        patch.setattr(Predictor, name, diverging(getattr(Predictor, name)))


# All rows have one length, so only one program is compiled.
THREE_EPOCHS = {"epochs": 3, "max_length": 8}


def test_fine_tuning_stops_at_a_nonfinite_last_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path / "config.yaml", tiny_config(tmp_path, **THREE_EPOCHS))
    run_dir = tmp_path / "tuned"
    diverge_in(monkeypatch, {1, 2})
    line = refused("finetune", config, code=1)
    says(line, key="predict.not_finite", place="step 30")
    # Step 20 is the newest checkpoint, without a score. Step 10 is the best. Step 30 is not saved.
    assert {path.name for path in (run_dir / "checkpoints").iterdir()} == {"10", "20"}
    assert load_params(open_run(run_dir), checkpoint="best").step == 10
    assert [line["step"] for line in read_metrics(run_dir, kind="validation")] == [10]
    assert not (run_dir / "evaluation.json").exists()
    diverge_in(monkeypatch, range(9))
    texts = ("--input", tmp_path / "rows-48-2.csv")
    for command in (("evaluate", run_dir), ("predict", run_dir, tmp_path / "out.jsonl", *texts)):
        line = refused(*command, code=1)
        assert line.key == "predict.not_finite"
        assert int(re.findall(r"row (\d+)", line)[0]) in range(48)
    assert not (run_dir / "evaluation.json").exists()
    assert not (tmp_path / "out.jsonl").exists()
    monkeypatch.undo()
    assert "resuming at step 20" in ok("finetune", config)


def test_a_flipped_bit_in_a_replica_stops_before_the_save(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device computes a wrong result at step 9. Step 10 names the device and does not save."""
    run_step, steps = StepPrograms.__call__, itertools.count(1)

    def failing(programs: StepPrograms, *arguments: Any) -> Any:
        state, figures = run_step(programs, *arguments)
        if next(steps) == 9:
            bias = state.params["pooler"]["dense"]["bias"]
            # The update of step 10 may round the last bit away, so flip a higher bit.
            state.params["pooler"]["dense"]["bias"] = corrupt(bias, 5, bit=20)
        return state, figures

    monkeypatch.setattr(StepPrograms, "__call__", failing)
    run_dir = tmp_path / "run"
    line = refused("pretrain", config, f"run_dir={run_dir}", "train.checksum_every=5", code=1)
    assert line.key == "replicas.outvoted"
    says(line, place="step 10", last=6)
    says(line, devices=["device 5 (process 0, cpu)"])
    assert {path.name for path in (run_dir / "checkpoints").iterdir()} == {"6"}


def test_bad_last_parameters_stop_at_the_evaluation(config: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    diverging = ["optimizer.weight_decay=1e15", "optimizer.warmup_steps=0"]
    last = ["train.phases.0.steps=2", "train.evaluation.every=2"]
    command = ("pretrain", config, f"run_dir={run_dir}", *diverging, *last)
    for _ in range(2):  # the second command resumes the run
        line = refused(*command, code=1)
        assert line.key == "evaluation.diverged"
        says(line, place="step 2: evaluation")
        assert "NaN" not in (run_dir / "metrics.jsonl").read_text()
    assert not [path for path in (run_dir / "checkpoints").iterdir() if path.name.isdecimal()]
    # In a longer run, the next steps detect the bad parameters and write a dump.
    earlier = ["train.phases.0.steps=16", "train.evaluation.every=2"]
    result = invoke("pretrain", config, f"run_dir={tmp_path / 'longer'}", *diverging, *earlier)
    assert result.exit_code == 1, (result.output, result.exception)
    (line,) = (line for line in result.output.splitlines() if "step 2: evaluation: " in line)
    assert "mlm_loss, nsp_loss" in line
    assert "after 3 skips" in result.stderr
    assert "[step.bad]" in result.stderr
    (folder,) = (tmp_path / "longer").glob("bad_step_*")
    assert str(folder) in result.stderr
    with np.load(folder / "state_0.npz") as state:
        names = [name for name in state.files if name.startswith("params/")]
        assert names
        assert all(np.isfinite(state[name]).all() for name in names)


@pytest.mark.chaos
def test_a_rollback_without_a_checkpoint_restarts_past_the_data(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = poison_pretraining(monkeypatch, {2: nan})
    run_dir = tmp_path / "run"
    said = ok("pretrain", config, f"run_dir={run_dir}", ROLLBACK)
    assert "step 3: back to step 0; skipping rows 0 to 23 of phase 0" in said
    assert sorted(losses(run_dir)) == list(range(1, STEPS + 1))
    assert read.count(2) == 1
