"""Making data, and telling a mistake in a configuration, need not wait for JAX to load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("jax", "flax", "optax", "grain", "orbax", "scipy", "tensorflow_datasets", "pyarrow")


@pytest.mark.parametrize(
    "module",
    [
        *("bert_jax.config", "bert_jax.verbs.examples", "bert_jax.cli", "bert_jax.launch.local"),
        *("bert_jax.verbs.submit", "bert_jax.verbs.watch", "bert_jax.verbs.stop"),
        "bert_jax.verbs.jobs",
    ],
)
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


def test_a_training_process_does_not_load_pytorch(tmp_path: Path) -> None:
    """tensorboardX would load it where it is installed, as it is with the tests."""
    program = (
        "import sys, bert_jax.verbs.pretrain, bert_jax.verbs.finetune\n"
        "from bert_jax.train.writer import RunWriter\n"
        f"writer = RunWriter({str(tmp_path)!r}, resume_step=0)\n"
        "writer.write('train', 1, {'loss': 1.0})\n"
        "writer.close()\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False"]
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))
