"""Temporary directories are removed at exit, even if exit handlers do not run."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys, tempfile
from bert_jax.files.scratch import scratch_directory
from bert_jax.parallel.channel import end_now

tempfile.tempdir = sys.argv[1]
(scratch_directory() / "copy").write_text("x")
{end}
"""


@pytest.mark.parametrize("end", ["", "end_now(0)"])
def test_no_temporary_directory_outlives_its_process(tmp_path: Path, end: str) -> None:
    program = PROGRAM.format(end=end)
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    assert not list(tmp_path.iterdir())
