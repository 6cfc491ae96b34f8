"""Several processes pretrain like one."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.runs.open_checkpoints import load_params
from bert_jax.runs.run_directory import open_run
from bert_jax.train.metrics_writer import read_metrics
from tests.processes.hosts import start
from tests.report.strict_html import items, read


def figures(run_dir: Path) -> list[dict[str, Any]]:
    """The records of metrics.jsonl except speeds and times, which differ between runs."""
    return [line for line in read_metrics(run_dir) if line["kind"] not in ("speed", "goodput")]


def params_of(run_dir: Path, *, ema: bool = False) -> Any:
    return jax.device_get(load_params(open_run(run_dir), checkpoint="last", ema=ema).params)


def test_two_processes_train_like_one_and_skip_damage(
    config: Path, alone: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    clock = ("train.checkpoint.every=100000", "train.checkpoint.every_minutes=0.00001")
    more = (f"run_dir={run}", *clock, "train.checkpoint.keep_last=9", "train.ema.decay=0.5")
    first = ("train.profile={start: 3, steps: 2}", "train.report_texts=2")
    with start("pretrain", config, *more, *first, count=2, directory=tmp_path) as job:
        assert job.wait() == [0, 0], job.said()
        assert "step 8/8" in job[0].out
        assert "step" not in job[1].out
        assert [host.out.count(f"report: {run}") for host in job] == [1, 0]
    assert len(items(read((run / "report.html").read_text()).root)) == 2
    traces = sorted((run / "tensorboard" / "plugins" / "profile" / "steps_3-4").iterdir())
    assert [path.name.rpartition("-")[2] for path in traces] == ["0.xplane.pb", "1.xplane.pb"]
    for expected, found in zip(figures(alone), figures(run), strict=True):
        assert found.pop("kind") == expected.pop("kind")
        found = {name: value for name, value in found.items() if not name.startswith("ema.")}
        assert found == pytest.approx(expected, rel=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        params_of(run),
        params_of(alone),
    )

    steps = sorted(int(path.name) for path in (run / "checkpoints").iterdir())
    # Saves by time happen only at report steps, where process 0 decides by its clock.
    assert steps == [2, 4, 6, 8]
    average = params_of(run, ema=True)
    damaged = next((run / "checkpoints" / "8" / "optimizer" / "d").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with start("pretrain", config, *more, count=2, directory=tmp_path) as job:
        assert job.wait() == [0, 0], job.said()
        assert "resuming at step 6 of 8" in job[0].out
    assert "checkpoint 8: optimizer/d/" in job[0].err
    assert "using 6 instead" in job[0].err
    assert "WARNING" not in job[1].err
    jax.tree.map(np.testing.assert_array_equal, params_of(run, ema=True), average)
