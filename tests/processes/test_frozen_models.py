"""Several processes load a frozen model and agree on its hash."""

from pathlib import Path

from bert_jax.runs.open_checkpoints import read_checkpoints
from tests.processes.hosts import start
from tests.project import keyed


def test_two_processes_agree_on_the_hash_of_a_frozen_model(
    config: Path, alone: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"

    def program(steps: str) -> tuple[object, ...]:
        return "-m", "tests.processes.distilled", alone, steps

    where = (config, f"run_dir={run}", "mesh.fsdp=2")
    with start("pretrain", *where, count=2, directory=tmp_path, program=program("8,8")) as job:
        assert job.wait() == [0, 0], job.said()
    hashes = read_checkpoints(run, lambda checkpoints: checkpoints.progress(8))["frozen"]
    assert len(hashes["teacher"]) == 64
    more = "train.phases.0.steps=9"
    with start(
        "pretrain", *where, more, count=2, directory=tmp_path, program=program("8,4")
    ) as job:
        assert job.wait() == [2, 2], job.said()
    for host in job:
        (line,) = (line for line in host.err.splitlines() if line.startswith("bert-jax: "))
        assert keyed(line).key == "processes.settings_differ"
        assert "/checkpoints/8/params: " in line
