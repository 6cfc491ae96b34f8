"""Making data, and telling a mistake in a configuration, need not wait for JAX to load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("jax", "flax", "optax", "grain", "orbax", "scipy", "tensorflow_datasets", "pyarrow")


@pytest.mark.parametrize("module", ["bert_jax.config", "bert_jax.verbs.examples", "bert_jax.cli"])
def test_what_makes_data_loads_no_library_that_it_does_not_need(module: str) -> None:
    program = f"import sys, {module}; print(*[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == []
