"""Two processes that are killed while the weights of their datasets change."""

from pathlib import Path
from typing import Any

from tests.chaos.reference import Reference
from tests.processes.hosts import start
from tests.project import write_config

STEPS = 40


def test_killed_processes_resume_a_changing_mixture_bit_for_bit(
    values: dict[str, Any], project: Path, tmp_path: Path
) -> None:
    first, second = (str(project / name) for name in ("dataset32", "dataset48"))
    phase = values["train"]["phases"][0] | {
        "dataset": {first: 0.9, second: 0.1},
        "mixing": {"until": {first: 0.2, second: 0.8}},
        "seq_length": 48,
        "packing": {"max_examples": 3},
        "steps": STEPS,
    }
    checkpoint = {"every": 4, "keep_last": STEPS}
    train = values["train"] | {"phases": [phase], "evaluation": None, "checkpoint": checkpoint}
    config = write_config(tmp_path / "run.yaml", values | {"train": train})
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    with start("pretrain", config, f"run_dir={whole}", count=2, directory=tmp_path) as job:
        assert job.wait() == [0, 0], job.said()
        assert f"epochs of {second}" in job[0].out
        assert "has read" not in job[1].out
    reference = Reference(whole)
    with start("pretrain", config, f"run_dir={killed}", count=2, directory=tmp_path) as job:
        job.wait_until(lambda: (killed / "checkpoints" / "8").exists())
        job.kill()
    step = reference.newest(killed)
    assert step is not None
    assert 8 <= step < STEPS
    with start("pretrain", config, f"run_dir={killed}", count=2, directory=tmp_path) as job:
        assert job.wait() == [0, 0], job.said()
        assert f"resuming at step {step} of {STEPS}" in job[0].out
    reference.check(killed)
