"""Several processes handle bad steps alike, and write one common dump."""

from pathlib import Path

import numpy as np

from tests.processes.hosts import start
from tests.processes.test_deaths import line_of
from tests.train.dumps import loaded_as_documented


def test_two_processes_skip_stop_and_dump_together(config: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    diverges = ("optimizer.weight_decay=1e33", "optimizer.warmup_steps=0")
    with start(
        "pretrain", config, f"run_dir={run_dir}", *diverges, count=2, directory=tmp_path
    ) as job:
        assert job.wait() == [1, 1], job.said()
        assert ": skipped without" in job[0].out
        for line in map(line_of, job):
            assert line.key == "step.bad"
            assert "after 3 skips in 128 steps" in line
    (folder,) = run_dir.glob("bad_step_*")
    for process in (0, 1):
        with np.load(folder / f"batch_{process}.npz") as pieces:
            (key,) = [name for name in pieces.files if name.startswith("input_ids@")]
            assert key.startswith(f"input_ids@{process * 4}:{process * 4 + 4},")
    loaded = loaded_as_documented(folder)
    assert loaded.bad_tensors == []  # the parameters are huge but finite
    assert loaded.bad_gradients
