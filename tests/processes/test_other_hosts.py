"""A run on changing numbers of hosts has the losses of an undisturbed run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bert_jax.train.metrics_writer import read_metrics
from tests.processes.conftest import STEPS
from tests.processes.hosts import start
from tests.project import write_config

HOSTS = [
    pytest.param((2, 1), id="2-1"),
    pytest.param((1, 2, 1), id="1-2-1", marks=pytest.mark.chaos),
    pytest.param((1, 2, 4, 1), id="1-2-4-1", marks=pytest.mark.chaos),
]


@pytest.mark.parametrize("hosts", HOSTS)
def test_a_run_resumes_on_any_number_of_hosts(
    values: dict[str, Any], alone: Path, tmp_path: Path, hosts: Sequence[int]
) -> None:
    """Every start except the last is killed during a step. See also test_verbs.py."""
    values = values | {"train": values["train"] | {"evaluation": None}}
    values["train"]["checkpoint"] = {"every": 2, "keep_last": 100}
    phase, steps = values["train"]["phases"][0], 4 * len(hosts)
    values["train"]["phases"] = [phase | {"steps": steps, "batch_size": 8}]
    config = write_config(tmp_path / "run.yaml", values)
    whole, moved = alone, tmp_path / "moved"
    if steps != STEPS:
        whole = tmp_path / "whole"
        with start(
            "pretrain", config, f"run_dir={whole}", count=1, directory=tmp_path / "out"
        ) as job:
            assert job.wait() == [0], job.said()
    for number, count in enumerate(hosts):
        with start(
            "pretrain", config, f"run_dir={moved}", count=count, directory=tmp_path / "out"
        ) as job:
            if number == len(hosts) - 1:
                assert job.wait() == [0] * count, job.said()
            else:
                reached = 4 * number + 3
                job.wait_until(lambda reached=reached: last_step(moved) >= reached)
                job.kill()
    pairs = zip(read_metrics(moved, kind="train"), read_metrics(whole, kind="train"), strict=True)
    for found, expected in pairs:
        assert found.pop("kind") == expected.pop("kind")
        assert found == pytest.approx(expected, rel=1e-5)


def last_step(run_dir: Path) -> int:
    if not (run_dir / "metrics.jsonl").exists():
        return 0
    return max((line["step"] for line in read_metrics(run_dir, kind="train")), default=0)
