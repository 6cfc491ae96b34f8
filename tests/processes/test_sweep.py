"""Several processes run a sweep like one, and end it together."""

import json
from pathlib import Path

from tests.processes.hosts import start
from tests.processes.test_deaths import line_of
from tests.project import write_config
from tests.tasks.runs import tiny_config

LEARNT = "seed0-lr0.003-epochs1"
RUNS = ["seed0-lr0.001-epochs1", "seed1-lr0.001-epochs1"]


def config_file(directory: Path) -> Path:
    """The configuration of a run with one compiled length, on CPUs."""
    values = tiny_config(directory, epochs=1, max_length=8)
    return write_config(directory / "config.yaml", values | {"mesh": {"platform": "cpu"}})


def test_two_processes_run_a_sweep_and_wait_for_writes(tmp_path: Path) -> None:
    """With the learning rate 1e-9 the model does not learn, so its run is flagged."""
    swept = tmp_path / "swept"
    rates = "finetune.sweep.learning_rates=[3e-3, 1e-9]"
    with start(
        *("finetune", config_file(tmp_path), f"run_dir={swept}", rates),
        count=2,
        directory=tmp_path,
        program=("-m", "tests.processes.slow_writes"),
    ) as job:
        assert job.wait() == [0, 0], job.said()
        assert f"best run: {LEARNT}" in job[0].out
    learnt, unlearnt = json.loads((swept / "sweep.json").read_text())["runs"]
    assert (learnt["name"], learnt["step"], learnt["degenerate"]) == (LEARNT, 10, None)
    assert unlearnt["degenerate"] is not None
    for root in (swept, swept / "runs" / LEARNT):
        figures = json.loads((root / "evaluation.json").read_text())
        assert (figures["step"], figures["scores"]) == (10, learnt["scores"])
        assert (root / "report.html").exists()


def test_two_processes_end_a_sweep_together_without_its_lock(tmp_path: Path) -> None:
    """Only process 0 holds the lock, and it notices the loss at the first run's save."""
    run = tmp_path / "swept"
    begun = run / "runs" / RUNS[0] / "config.yaml"
    with start(
        *("finetune", config_file(tmp_path), f"run_dir={run}", "--seeds", 2),
        count=2,
        directory=tmp_path,
        program=("-m", "tests.processes.lost_lock", begun),
    ) as job:
        assert job.wait() == [1, 1], job.said()
        for host in job:
            assert line_of(host).key == "lock.lost"
    assert json.loads((run / "sweep.json").read_text())["runs"] == []
    assert [path.name for path in (run / "runs").iterdir()] == RUNS[:1]
    assert not list((run / "runs" / RUNS[0] / "checkpoints").iterdir())
