"""If the memory is full, all processes exit at once with 2 and one line."""

import re
from pathlib import Path

import pytest

from tests.processes.hosts import start

LIMITED = ("-m", "tests.processes.limited_memory")
# The activations of a step take about 3.5 GiB.
LARGE = ("model.architecture.intermediate_size=100000", "train.phases.0.batch_size=512")
IN_TIME = 30.0  # seconds


@pytest.mark.parametrize("workers", [0, 2])
def test_a_step_that_does_not_fit_is_one_line(config: Path, tmp_path: Path, workers: int) -> None:
    more = (*LARGE, f"loader.workers={workers}")
    program = (*LIMITED, "0", 1.0)
    with start(
        *("pretrain", config, f"run_dir={tmp_path / 'run'}", *more),
        count=1,
        directory=tmp_path,
        program=program,
    ) as job:
        assert job.wait() == [2], job.said()
        (line,) = job[0].err.splitlines()
        warned = re.findall(r"memory: this host has ([\d.]+) GiB of", job[0].out)
    assert line.endswith("[memory.full]")
    (needed,) = map(float, re.findall(r"cannot allocate ([\d.]+) GiB", line))
    (free,) = map(float, re.findall(r"with ([\d.]+) GiB of", line))
    assert needed > free
    assert len(warned) == 1
    assert "A step of 512 rows needs" in line
    for setting in ("batch_size", "accumulation", "remat", "mesh.fsdp", "loader.workers"):
        assert setting in line


def test_other_processes_end_with_the_one_whose_memory_is_full(
    config: Path, tmp_path: Path
) -> None:
    program = (*LIMITED, "1", 1.0)
    with start(
        *("pretrain", config, f"run_dir={tmp_path / 'run'}", *LARGE),
        count=2,
        directory=tmp_path,
        program=program,
    ) as job:
        assert job.wait() == [2, 2], job.said()
        ended = [host.ended_at for host in job]
        lines = [
            line for host in job for line in host.err.splitlines() if line.startswith("bert-jax: ")
        ]
    assert max(ended) - min(ended) < IN_TIME
    assert "[processes.peer_ended]" in lines[0]
    assert lines[1].endswith("[memory.full]")
    assert "process 1" in lines[0]
