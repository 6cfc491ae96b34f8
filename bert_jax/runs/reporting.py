"""What every verb that trains hands to the loop."""

from __future__ import annotations

import jax
from etils import epath
from rich.console import Console

from bert_jax.train.progress_display import Progress
from bert_jax.train.step import RngName
from bert_jax.train.writer import NoWriter, RunWriter, Writer


def choose_rng(name: str) -> RngName:
    """Returns the generator of dropout bits.

    On a TPU the hardware's, since threefry costs more there than the matrix products around it;
    elsewhere threefry, which gives the same bits on every mesh.
    """
    if name == "auto":
        return "unsafe_rbg" if jax.default_backend() == "tpu" else "threefry2x32"
    return name  # pyright: ignore[reportReturnType]


def make_writer(root: epath.Path, step: int) -> Writer:
    """Returns where a run's figures go: written once, by the first process."""
    return RunWriter(root, resume_step=step) if jax.process_index() == 0 else NoWriter()


def make_progress(console: Console, first_step: int, total_steps: int) -> Progress:
    """Returns what shows a run's progress, on the first process alone."""
    if jax.process_index() != 0:
        console = Console(quiet=True)
    return Progress(console, first_step=first_step, total_steps=total_steps)
