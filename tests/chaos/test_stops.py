"""SIGTERM to one of four hosts: one common step is saved, all end alike, and nothing is lost."""

import os
import random
from pathlib import Path
from typing import Any

import pytest

from bert_jax.train.example_log import read_example_log
from bert_jax.train.writer import read_metrics
from tests.chaos.stops import Stop, stop_at_random
from tests.project import DROPOUT, project_config, write_config

IN_TIME = 15.0  # seconds


@pytest.mark.chaos
def test_a_signal_to_one_of_four_hosts_is_heard_by_all_every_time(
    project: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """CHAOS_STOPS, CHAOS_SEED and CHAOS_STOP_SECONDS change it."""
    values: dict[str, Any] = project_config(project)
    values["model"]["architecture"] |= DROPOUT
    values["mesh"] = {"platform": "cpu"}
    values["train"] |= {
        "phases": [values["train"]["phases"][0] | {"steps": 1_000_000}],
        "log_every": 1,
        "evaluation": {"every": 50, "batch_size": 4},  # a third of the time
        "checkpoint": {"every": 40, "keep_last": 3},
        "example_log": True,
    }
    config = write_config(tmp_path / "run.yaml", values)
    random_ = random.Random(os.environ.get("CHAOS_SEED", "0"))
    run_dir, stops = tmp_path / "run", list[Stop]()
    for _ in range(int(os.environ.get("CHAOS_STOPS", "20"))):
        stops.append(stop_at_random(config, run_dir, count=4, random_=random_))
        with capsys.disabled():
            print(f"\n{stops[-1]}")
    last = stops[-1].step
    assert sorted(read_example_log(run_dir)) == list(range(1, last + 1))
    reported = [line["step"] for line in read_metrics(run_dir, kind="train")]
    assert reported == list(range(1, last + 1))
    evaluated = [line["step"] for line in read_metrics(run_dir, kind="validation")]
    due = list(range(50, last + 1, 50))
    assert evaluated in (due, [step for step in due if step < last])  # or to be made up for
    limit = float(os.environ.get("CHAOS_STOP_SECONDS", IN_TIME))
    assert max(stop.seconds for stop in stops) < limit
