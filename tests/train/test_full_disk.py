"""A disk that fills up during training: one message, no partial files, and a later resume.

A limit on file size simulates the full disk.
"""

import contextlib
import resource
import shutil
import subprocess
import sys
import textwrap
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from etils import epath
from tensorboardX.proto.event_pb2 import Event

from bert_jax.data.google_bert.tfrecord import scan_records
from bert_jax.train.checkpointer import Checkpointer
from bert_jax.train.metrics_writer import METRICS, RunWriter, TensorBoard, read_metrics
from bert_jax.train.sections import CheckpointSection
from tests.project import ROOT, invoke, project_config, write_config
from tests.train.checkpoints import state_at

PROGRAM = """
import gc, pathlib, resource
import jax, numpy as np
from bert_jax.train.checkpointer import Checkpointer
from bert_jax.train.sections import CheckpointSection

draw = np.random.default_rng(0).standard_normal
params = {f"array_{i}": jax.numpy.asarray(draw((64, 1024), np.float32)) for i in range(24)}
section = CheckpointSection(on_error="warn")
with Checkpointer(pathlib.Path(DIRECTORY), section, say=lambda line: print(line)) as checkpoints:
    checkpoints.save_params(params, step=1)
    checkpoints.wait()
    free = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, free[1]))
    for step in (2, 3, 4):
        checkpoints.save_params(params, step=step)
    _ = checkpoints.on_disk  # waits
    resource.setrlimit(resource.RLIMIT_FSIZE, free)
    gc.collect()
    checkpoints.save_params(params, step=5)
    checkpoints.wait()
    assert checkpoints.on_disk.steps()[-1] == 5
"""


def test_a_save_on_a_full_disk_is_one_line(tmp_path: Path) -> None:
    program = textwrap.dedent(PROGRAM).replace("DIRECTORY", repr(str(tmp_path / "checkpoints")))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True
    )
    said = done.stdout.splitlines()
    assert len(said) == 3
    for step, line in zip((2, 3, 4), said, strict=True):
        assert f"checkpoint {step} was NOT SAVED" in line


def test_a_save_without_room_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    section = CheckpointSection(on_error="warn")
    with Checkpointer(tmp_path, section, say=said.append) as checkpoints:
        checkpoints.save(state_at(4), step=4, progress={})
        checkpoints.wait()
        with monkeypatch.context() as patched:
            patched.setattr(shutil, "disk_usage", lambda path: types.SimpleNamespace(free=100))
            assert not checkpoints.save(state_at(8), step=8, progress={})
        checkpoints.save(state_at(12), step=12, progress={})
    (line,) = said
    assert "checkpoint 8 was NOT SAVED (No space left on device)" in line
    assert "Last checkpoint: 4." in line
    assert capfd.readouterr().err == ""
    assert {path.name for path in tmp_path.iterdir()} == {"4", "12"}


@contextlib.contextmanager
def full() -> Iterator[None]:
    """Limits files of this process to 2,000 bytes."""
    free = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, free[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, free)


def test_metrics_wait_in_memory_for_disk_space(tmp_path: Path) -> None:
    said: list[str] = []
    writer = RunWriter(tmp_path, resume_step=0, say=said.append)

    def report(*steps: int) -> None:
        for step in steps:
            writer.write("train", step, {"loss": 1.0})

    report(*range(1, 11))
    with full():
        report(*range(11, 101))
        with pytest.raises(OSError, match="File too large"):
            writer.flush()
        raw = (tmp_path / METRICS).read_bytes()
        assert raw.endswith(b"}\n")  # the last line is complete
        assert len(said) == 2  # for metrics.jsonl and TensorBoard
    assert [line.partition("; ")[2] for line in said] == [
        "its lines are kept in memory",
        "its lines are kept in memory",
    ]
    report(101)
    writer.flush()
    assert [line["step"] for line in read_metrics(tmp_path)] == list(range(1, 102))
    report(102)
    writer.close()
    assert len(said) == 2
    (events,) = (tmp_path / "tensorboard").iterdir()
    found = [Event.FromString(record.payload) for record in scan_records(epath.Path(events))]
    assert [each.step for each in found if each.summary.value] == list(range(1, 103))
    board = TensorBoard(tmp_path, resume_step=102, say=said.append)
    with full():
        for step in range(103, 303):
            board.write("train", step, {"loss": 1.0})
        board.close()
    assert len(said) == 4  # a refused write and lost lines


@pytest.mark.parametrize("on_error", ["stop", "warn"])
def test_a_run_without_room_for_metrics_stops_if_configured(
    project: Path, tmp_path: Path, on_error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = project_config(project)
    values["mesh"] = {"platform": "cpu"}
    values["train"] |= {
        "phases": [values["train"]["phases"][0] | {"steps": 6}],
        "log_every": 1,
        "checkpoint": {"every": 2, "on_error": on_error},
    }
    config, run_dir = write_config(tmp_path / "run.yaml", values), tmp_path / "run"
    flush, flushed = RunWriter.flush, []

    def flush_once_full(writer: RunWriter) -> None:
        """Fills the disk after the first checkpoint, so that the second save fails."""
        flushed.append(writer)
        if len(flushed) != 2:
            return flush(writer)
        while not (run_dir / "checkpoints" / "2").exists():
            time.sleep(0.01)
        with full():
            for filling in range(100):
                writer.write("train", 0, {"filling": filling})
            return flush(writer)

    monkeypatch.setattr(RunWriter, "flush", flush_once_full)
    result = invoke("pretrain", config, f"run_dir={run_dir}")
    assert "checkpoint 4 was NOT SAVED (File too large)" in result.stderr
    assert "Last checkpoint: 2." in result.stderr
    assert "Traceback" not in result.stderr
    assert result.exit_code == (1 if on_error == "stop" else 0)
    saved = {path.name for path in (run_dir / "checkpoints").iterdir()}
    assert saved == ({"2"} if on_error == "stop" else {"2", "6"})
    steps = [line["step"] for line in read_metrics(run_dir, kind="train") if line["step"]]
    assert steps == list(range(1, 5 if on_error == "stop" else 7))
