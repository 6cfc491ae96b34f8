"""Temporary directories do not outlive their process for long, however it ended."""

import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.files.scratch import scratch_directory

PROGRAM = """
import os, sys, tempfile
from bert_jax.files.scratch import scratch_directory

tempfile.tempdir = sys.argv[1]
made = scratch_directory()
(made / "copy").write_text("x")
print(made, flush=True)
sys.stdin.readline()
os._exit(4)
"""


def test_what_a_process_that_ended_at_once_has_left_is_deleted_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        theirs = Path(other.stdout.readline().strip())
        ours = scratch_directory()
        assert (theirs / "copy").exists()  # it is in use
        other.stdin.close()
        assert other.wait() == 4
    assert theirs.exists()
    another = scratch_directory()
    assert sorted(tmp_path.iterdir()) == sorted([ours, another])
