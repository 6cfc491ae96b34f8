"""The specification of a run: validated, immutable inputs of the train loop."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from etils import epath
from jax.sharding import Mesh

from bert_jax.data.loader.data_position import DataPosition
from bert_jax.optim.schedule import Schedule
from bert_jax.parallel.section import check_batch
from bert_jax.parallel.sharding_rules import batch_parts
from bert_jax.task import Batch, HostBatch, Params, Watch
from bert_jax.train import sections
from bert_jax.train.checkpoint_manifest import EMA, SelectionScore
from bert_jax.train.evaluation_section import StopAtSection
from bert_jax.train.frozen import NONE_FROZEN, FrozenParams
from bert_jax.train.state import DrawParams
from bert_jax.train.step import StepSpec


class Milestones:
    """Receives the milestones of a run from the train loop. This class ignores them.

    Steps are steps of the run.
    """

    def started(self) -> None:
        """Everything is compiled; next, the run evaluates or trains."""

    def training(self, step: int, *, until: int) -> None:
        """Training continues after `step`, up to the evaluation after `until`."""

    def evaluating(self, step: int) -> None:
        """An evaluation of `step` begins."""

    def evaluated(self, step: int, scores: Mapping[str, float]) -> None:
        """The evaluation of `step` has ended."""

    def ended(self, step: int, *, target_reached: bool) -> None:
        """The run has ended; only the first call counts.

        Args:
            step: last step.
            target_reached: whether a score met `train.evaluation.stop_at`.
        """

    def flush(self) -> None:
        """Writes everything to files. Call it before a checkpoint."""

    def close(self) -> None:
        """Writes everything and closes the files."""


if TYPE_CHECKING:  # importing it would load Orbax
    from bert_jax.train.checkpointer import Checkpointer

HostBatches: TypeAlias = AbstractContextManager[Iterator[HostBatch]]
# (parameters, frozen parameters) → scores
Evaluate: TypeAlias = Callable[[Params, Params], Mapping[str, float]]


class BatchSource(Protocol):
    """The batches of a phase, readable from any step."""

    def batches(self, *, first_step: int, run: range | None = None) -> HostBatches:
        """Returns this host's rows of all batches from index `first_step` on.

        `run` has the steps of the run, from 0, at which these batches are trained. Rows that change
        during the run depend on it. None: outside a run.
        """
        ...

    def position(self, step: int) -> DataPosition:
        """Returns the data position after `step` batches."""
        ...

    def check(self, position: DataPosition) -> int:
        """Returns the number of batches before a position.

        Raises UserError if the position belongs to other data.
        """
        ...

    def resume_position(self, position: DataPosition) -> DataPosition:
        """Converts a position in other data to the position at which to resume in this data."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase of a run, with opened data."""

    step: StepSpec  # the models of all phases have the same parameters
    steps: int
    batch_size: int
    accumulation: int
    loader: BatchSource
    shapes: int  # number of different batch shapes
    flops_per_row: float
    evaluate: Evaluate | None  # None without validation data
    watch: Watch | None  # source of warnings about the scores
    # Shapes of a full batch; None if they are known only from the data
    batch: Batch | None = None
    # (parameters or their shapes, frozen parameters): compiles the evaluation
    compile_evaluation: Callable[[Params, Params], object] | None = None
    validation: str = "dev"  # fingerprint of the validation data
    # Settings of the architecture that only this phase has; its checkpoints record them
    architecture: Mapping[str, float] = dataclasses.field(default_factory=dict)
    causal: bool = False  # whether attention is left to right; its checkpoints record it
    # Says how much of several datasets a position has read; None for one dataset
    describe_read: Callable[[DataPosition], str] | None = None
    pretrained: bool = False  # whether a new run starts from a trained model

    @property
    def scored(self) -> list[str]:
        """First parts of the names of scores: "" of the parameters, and "ema" of their average."""
        ema = self.step.ema
        return ["", EMA] if ema is not None and ema.evaluate else [""]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Intervals:
    """Intervals between reports, evaluations, checkpoints and comparisons, in steps."""

    log_every: int
    evaluate_every: int | None
    checkpoint_every: int
    checkpoint_minutes: float | None = None  # a save is due after either interval
    checksum_every: int | None = None  # steps between comparisons of the state's replicas
    patience: int | None = None  # maximum consecutive evaluations without improvement
    evaluate_first: bool = False  # whether to evaluate before the first step of a new run
    stop_at: StopAtSection | None = None  # score that ends the run
    # Largest rises of losses since the evaluation before the first step
    at_most: Mapping[str, float] = dataclasses.field(default_factory=dict)
    stop_above: bool = False  # whether a larger rise ends the run


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointSelection:
    """The score, or the weighted sum of scores, by which the best checkpoint is selected."""

    weights: Mapping[str, float]  # by the name of the score
    larger_is_better: bool

    @property
    def metric(self) -> str:
        """The scores as text: ``loss``, ``0.7 domain.loss + 0.3 general.loss``."""
        if len(self.weights) == 1:
            return next(iter(self.weights))
        return " + ".join(f"{weight:g} {name}" for name, weight in self.weights.items())

    def score(self, scores: Mapping[str, float], *, phase: int, data: str) -> SelectionScore | None:
        """Returns the selection score; smaller is better, and NaN becomes the largest float.

        Only scores with equal `phase` and `data` are compared. Returns None if the objective of the
        phase does not have the scores.
        """
        if not scores.keys() >= self.weights.keys():
            return None
        value = sum(weight * scores[name] for name, weight in self.weights.items())
        if math.isnan(value):
            value = sys.float_info.max
        elif self.larger_is_better:
            value = -value
        return SelectionScore(value, f"phase {phase}, {self.metric} on {data}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSpec:
    """The inputs of the train loop."""

    schedule: Schedule  # learning rates
    phases: Sequence[Phase]
    intervals: Intervals
    selection: CheckpointSelection
    mesh: Mesh
    seed: int
    run_dir: epath.Path
    checkpoints: Checkpointer
    # Called by every process before each save. Raises RunStopped if another job has taken the run
    # directory.
    check_lock: Callable[[], None]
    # (abstract parameters, function that draws parameters) → initial parameters
    initial_params: Callable[[Params, DrawParams], Params]
    # Writes configuration, tokenizer and provenance into a folder: the run directory or a dump.
    # Only the first process calls it.
    write_config: Callable[[epath.Path], None]
    allow_data_change: bool  # whether data may have changed since the last checkpoint
    trackers: Sequence[sections.TrackerName]
    started: float  # Unix time at which this process, or a later run in it, started
    watchdog: sections.WatchdogSection | None
    bad_steps: sections.BadStepsSection
    # Facts about the task that the configuration lacks, as plain JSON, for a dump
    task_facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    profile: sections.ProfileSection | None = None  # steps to trace
    frozen: FrozenParams = NONE_FROZEN  # parameters of the task's frozen models
    # Set for a benchmark: the run then compiles before it reads the first batch
    milestones: Milestones | None = None

    @property
    def first_step(self) -> StepSpec:
        """The step of the first phase. It determines the structure of the state in all phases."""
        return self.phases[0].step


def check_batches(section: sections.TrainSection, mesh: Mesh) -> None:
    """Raises UserError, naming the key, if a batch size does not fit devices and microbatches."""
    for key, (rows, accumulation) in section.batch_sizes.items():
        check_batch(key, rows, parts=batch_parts(mesh), accumulation=accumulation)
