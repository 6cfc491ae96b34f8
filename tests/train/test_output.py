"""Failed writes of a run's metrics."""

import json
from pathlib import Path
from typing import Any

import pytest

from bert_jax.train.metrics_writer import GOODPUT, HEARTBEAT, Writer
from bert_jax.train.output import Output
from bert_jax.train.time_account import KINDS
from tests.train.test_full_disk import full


def test_a_failed_heartbeat_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, said = tmp_path / "heartbeat.json", []
    monkeypatch.setenv(HEARTBEAT, str(path))
    writer = Writer(say=said.append)
    figures = dict.fromkeys(KINDS, 1.0)
    writer.write(GOODPUT, 1, figures)
    path.with_suffix(".tmp").mkdir()
    for step in (2, 3):
        writer.write(GOODPUT, step, figures)
    assert json.loads(path.read_text())["step"] == 1
    (line,) = said
    assert line.startswith(f"{path}: ")
    path.with_suffix(".tmp").rmdir()
    with full():
        writer.write(GOODPUT, 4, figures)
    assert json.loads(path.read_text())["step"] == 4


class Closed:
    """A writer or display whose `close` may fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.closed, self.said = error, False, []

    def close(self) -> None:
        self.closed = True
        if self.error is not None:
            raise self.error

    def say(self, message: str, *, style: str = "") -> None:
        del style
        self.said.append(message)


def test_every_output_is_closed_and_failures_are_printed() -> None:
    parts: list[Any] = [Closed(OSError(28, "No space left on device")), Closed(), Closed()]
    writer, display, milestones = parts
    nothing: Any = None
    output = Output(writer, display, nothing, milestones)
    output.close()  # does not raise, or it would hide the run's own error
    assert all(part.closed for part in parts)
    assert display.said == ["No space left on device"]
