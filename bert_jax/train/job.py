"""What a run is made of: its phases and everything that decides its numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import optax
from etils import epath
from jax.sharding import Mesh

from bert_jax.data.loader import Loader
from bert_jax.errors import UserError
from bert_jax.parallel.mesh import Share
from bert_jax.parallel.rules import batch_parts
from bert_jax.task import Task
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.plateau import Plateau
from bert_jax.train.sections import PhaseSection, TrainSection
from bert_jax.train.state import ModelDefinition
from bert_jax.train.step import RngName

HostBatches = AbstractContextManager[Iterator[Mapping[str, np.ndarray]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase with its data opened."""

    section: PhaseSection
    loader: Loader
    flops_per_row: float
    evaluate: Callable[[], HostBatches] | None  # one pass over the validation split
    plateau: Plateau | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """All that a run is made of, put together by the command line."""

    task: Task
    phases: Sequence[Phase]
    optimizer: Callable[[ModelDefinition], optax.GradientTransformation]
    schedule: optax.Schedule
    section: TrainSection
    rng: RngName
    mesh: Mesh
    share: Share
    seed: int
    run_dir: epath.Path
    checkpointer: Checkpointer
    initial_params: Callable[[Any], Any] | None  # abstract parameters → parameters to start from
    write_config: Callable[[], None]  # called once it is sure that the run can go on


def check_batches(section: TrainSection, mesh: Mesh) -> None:
    """Refuses batch sizes that cannot be dealt evenly to devices and microbatches.

    Raises:
        UserError: naming the phase and the multiple that is allowed.
    """
    parts = batch_parts(mesh)
    for index, phase in enumerate(section.phases):
        unit = parts * phase.accumulation
        if phase.batch_size % unit:
            raise UserError(
                f"train.phases.{index}.batch_size: found {phase.batch_size}, allowed: a multiple "
                f"of {unit} (data × fsdp = {parts}, accumulation {phase.accumulation})"
            )
