"""Compiles for TPUs in a child process: a process can load libtpu only once."""

import subprocess
import sys

from bert_jax.planning.compiler import TPU_COMPILER
from tests.project import ROOT, environment


def compile_for_tpus(module: str, *arguments: object) -> str:
    """Runs ``python -m module arguments``; asserts success and returns its output."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=environment() | dict(TPU_COMPILER),
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
