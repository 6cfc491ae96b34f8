"""The specification of a run: everything that the train loop needs, checked and immutable."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from etils import epath
from jax.sharding import Mesh

from bert_jax.data.host_share import HostShare
from bert_jax.data.loader.data_position import DataPosition
from bert_jax.optim.schedule import Schedule
from bert_jax.parallel.rules import batch_parts
from bert_jax.parallel.section import check_batch
from bert_jax.task import HostBatch, Params, Watch
from bert_jax.train import sections
from bert_jax.train.manifest import SelectionScore
from bert_jax.train.state import DrawParams
from bert_jax.train.step import StepSpec

if TYPE_CHECKING:  # it brings Orbax with it
    from bert_jax.train.checkpoint import Checkpointer

HostBatches: TypeAlias = AbstractContextManager[Iterator[HostBatch]]
Evaluate: TypeAlias = Callable[[Params], Mapping[str, float]]  # parameters → scores


class BatchSource(Protocol):
    """A phase's batches, which can be opened at any step."""

    def batches(self, *, first_step: int, with_examples: bool = False) -> HostBatches:
        """Returns this host's rows of batch `first_step`, counted from 0, and of all later ones.

        `with_examples`: each batch names its examples, see `bert_jax.data.loader.batch_maker`.
        """
        ...

    def position(self, step: int) -> DataPosition:
        """Returns the data position after `step` batches."""
        ...

    def check(self, position: DataPosition) -> int:
        """Returns the number of batches before a position; UserError: it is of other data."""
        ...

    def go_on(self, position: DataPosition) -> DataPosition:
        """Returns where to continue in this data from a position in other data."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase of a run, its data opened."""

    steps: int
    batch_size: int
    accumulation: int
    loader: BatchSource
    shapes: int  # number of different shapes of its batches
    flops_per_row: float
    evaluate: Evaluate | None  # if there is validation data
    watch: Watch | None  # gives warnings about the scores
    validation: str = "dev"  # fingerprint of the data of `evaluate`


@dataclasses.dataclass(frozen=True, kw_only=True)
class Intervals:
    """Steps between two reports, evaluations, checkpoints, comparisons."""

    log_every: int
    evaluate_every: int | None
    checkpoint_every: int
    checkpoint_minutes: float | None = None  # a checkpoint is due when the first is over
    checksum_every: int | None = None  # compares replicas of the state
    patience: int | None = None  # evaluations without a better one before the run ends


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointSelection:
    """The metric by which the best checkpoint is selected."""

    metric: str
    larger_is_better: bool

    def score(self, scores: Mapping[str, float], *, phase: int, data: str) -> SelectionScore:
        """Returns the selection score, smaller for the better; the largest float for NaN.

        Scores of another `phase`, whose rows differ in length, or of other `data` are not compared.
        """
        value = scores[self.metric]
        if math.isnan(value):
            value = sys.float_info.max
        elif self.larger_is_better:
            value = -value
        return SelectionScore(value, f"phase {phase}, {self.metric} on {data}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSpec:
    """Everything that the train loop needs to run, restore and save."""

    step: StepSpec
    schedule: Schedule  # learning rate by update
    phases: Sequence[Phase]
    intervals: Intervals
    selection: CheckpointSelection
    mesh: Mesh
    share: HostShare
    seed: int
    run_dir: epath.Path
    checkpoints: Checkpointer
    # Every process calls it before each save. Raises RunStopped: another job has taken the run
    # directory.
    check_lock: Callable[[], None]
    # (abstract parameters, what draws fresh ones of some parts) → first parameters.
    initial_params: Callable[[Params, DrawParams], Params]
    # Makes a folder self-contained: the run's, once it is certain that it can start, and dumps.
    write_config: Callable[[epath.Path], None]
    allow_data_change: bool  # since the last checkpoint; otherwise it is refused
    example_log: bool  # whether to write down the examples of each step
    trackers: Sequence[sections.TrackerName]
    started: float  # start of the process or of this run in it, seconds since 1970
    watchdog: sections.WatchdogSection | None  # default: no watchdog
    bad_steps: sections.BadStepsSection
    # Facts about the task that are not in the configuration, as plain JSON, for a dump.
    task_facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    profile: sections.ProfileSection | None = None  # steps to trace


def check_batches(section: sections.TrainSection, mesh: Mesh) -> None:
    """Refuses batch sizes that devices and microbatches do not divide; UserError: names the key."""
    for key, (rows, accumulation) in section.batch_sizes.items():
        check_batch(key, rows, parts=batch_parts(mesh), accumulation=accumulation)
