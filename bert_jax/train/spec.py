"""What a run is made of: its phases and everything that decides its numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import optax
from etils import epath
from jax.sharding import Mesh

from bert_jax.data.host_share import HostShare
from bert_jax.data.loader.data_position import DataPosition
from bert_jax.errors import UserError
from bert_jax.parallel.rules import batch_parts
from bert_jax.task import HostBatch, Task
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.plateau import Plateau
from bert_jax.train.sections import TrainSection
from bert_jax.train.state import ModelDefinition
from bert_jax.train.step import RngName, TrainStep

HostBatches = AbstractContextManager[Iterator[HostBatch]]


class BatchSource(Protocol):
    """A phase's batches, which can be opened at any step."""

    def batches(self, *, first_step: int) -> HostBatches:
        """Returns this host's rows of batch `first_step` and those after it, without end."""
        ...

    def position(self, step: int) -> DataPosition:
        """Returns where the data stands after so many batches."""
        ...

    def check(self, position: DataPosition) -> int:
        """Returns the batches that lie before a position.

        Raises:
            UserError: it is one of other data or settings.
        """
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase with its data opened."""

    steps: int
    batch_size: int
    accumulation: int
    loader: BatchSource
    shapes: int  # how many different shapes its batches have
    flops_per_row: float
    evaluate: Callable[[Any], Mapping[str, float]] | None  # parameters → scores
    plateau: Plateau | None
    step: TrainStep | None = None  # a compiled step in place of the one to compile for this run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pace:
    """How often what is done, in steps."""

    log_every: int
    evaluate_every: int | None
    checkpoint_every: int
    patience: int | None = None  # evaluations without a better one before the run ends


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranking:
    """What makes one evaluation better than another."""

    metric: str
    larger_is_better: bool

    def rank(self, scores: Mapping[str, float]) -> float:
        """Returns a number that is smaller for the better; of no figure, the largest there is."""
        value = scores[self.metric]
        if math.isnan(value):
            return math.inf
        return -value if self.larger_is_better else value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """All that a run is made of, put together by the command line."""

    task: Task
    model: ModelDefinition  # of the task
    phases: Sequence[Phase]
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule
    pace: Pace
    ranking: Ranking
    rng: RngName
    mesh: Mesh
    share: HostShare
    seed: int
    run_dir: epath.Path
    checkpointer: Checkpointer
    initial_params: Callable[[Any], Any] | None  # fresh parameters → those to start from
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
