"""Restores or initialises the state of a run, and records rollbacks."""

import functools
import json
from collections.abc import Callable
from typing import Final

import jax
import pydantic
from etils import epath

from bert_jax.data.loader.data_position import DataPosition, describe_differences
from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.files.seal import read_sealed, sealed
from bert_jax.section import Section
from bert_jax.train.bad_steps import BadStep
from bert_jax.train.checkpoint_manifest import EMA, IMPORTED
from bert_jax.train.frozen import check_frozen
from bert_jax.train.progress import TrainProgress
from bert_jax.train.spec import TrainSpec
from bert_jax.train.state import TrainState, draw_params, initialise, laid_out_as
from bert_jax.validation import validate

ROLLBACKS: Final = "rollbacks.json"


class Rollback(Section):
    """A rollback to a checkpoint."""

    checkpoint: int = pydantic.Field(ge=0)  # step of the checkpoint; 0 is the start of the run
    bad_step: int = pydantic.Field(ge=1)
    reason: str  # description of the problem
    # Loss, gradient norm and their limits, without NaN or infinity
    figures: dict[str, float] = pydantic.Field(default_factory=dict)
    phase: int = pydantic.Field(ge=0)  # phase of the bad step
    first: int = pydantic.Field(ge=0)  # index of the first skipped row in the phase
    position: DataPosition  # data position after the skipped rows

    def apply(self, progress: TrainProgress) -> None:
        """Moves the progress of the checkpoint past the skipped data."""
        if progress.phase < self.phase:
            progress.start_phase(self.phase)
        progress.position = self.position


class RollbackFile(Section):
    """The content of `ROLLBACKS`."""

    rollbacks: tuple[Rollback, ...] = ()


class RollbackLog:
    """The rollbacks of a run.

    The file is written at each rollback. If the run then stops before the next checkpoint, it skips
    the same data when it resumes.

    Attributes:
        entries: rollbacks, oldest first.
    """

    def __init__(self, run_dir: epath.Path) -> None:
        """Reads the file if it exists; raises UserError if it is damaged."""
        self._path = run_dir / ROLLBACKS
        self.entries: tuple[Rollback, ...] = ()
        if self._path.exists():
            found = validate(RollbackFile, read_sealed(self._path), source=str(self._path))
            self.entries = found.rollbacks

    def apply(self, progress: TrainProgress) -> None:
        """Moves the progress of a checkpoint past the data that rollbacks to it skip.

        Rollbacks to later checkpoints are dropped; the run will decide on them again.
        """
        self.entries = tuple(e for e in self.entries if e.checkpoint <= progress.step)
        if before := self.to(progress.step):
            before[-1].apply(progress)

    def to(self, step: int) -> list[Rollback]:
        """Returns the rollbacks to the checkpoint of `step`, oldest first."""
        return [entry for entry in self.entries if entry.checkpoint == step]

    def add(self, bad: BadStep, progress: TrainProgress, *, at: TrainProgress) -> Rollback:
        """Records a rollback and applies it to `progress`.

        Args:
            bad: bad step.
            progress: progress of the checkpoint, after earlier rollbacks to it.
            at: progress at the bad step.
        """
        assert at.position is not None
        start = progress.position if progress.phase == at.phase else None
        entry = Rollback(
            checkpoint=progress.step,
            bad_step=bad.step,
            reason=bad.reason,
            figures=bad.finite,
            phase=at.phase,
            first=start.example_index if start else 0,
            position=at.position,
        )
        self.entries += (entry,)
        if jax.process_index() == 0:
            body = RollbackFile(rollbacks=self.entries).model_dump(mode="json")
            write_whole(self._path, json.dumps(sealed(body), indent=1))
        entry.apply(progress)
        return entry


def restore_or_initialise(
    spec: TrainSpec,
    abstract: TrainState,
    rollbacks: RollbackLog,
    *,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> tuple[TrainState, TrainProgress]:
    """Returns state and progress of the last checkpoint; without one, initialises them.

    The data position is after the data that rollbacks to the checkpoint skip.

    Args:
        spec: specification of the run.
        abstract: shapes, dtypes and shardings of the state.
        rollbacks: rollbacks of the run.
        say: prints a message if the moving average of the parameters begins at the checkpoint.
        warn: prints a warning if `spec.allow_data_change` is set and the data have changed.

    Raises:
        UserError: the checkpoint belongs to another model, other frozen models, or to other phases
            or data.
    """
    step = spec.checkpoints.on_disk.newest()
    if step is None:
        draw = functools.partial(draw_params, spec.first_step.model, seed=spec.seed)
        params = laid_out_as(spec.initial_params(abstract.params, draw), abstract.params)
        state = initialise(params, spec.first_step.optimizer, abstract, seed=spec.seed)
        progress = TrainProgress()
        _begin(progress, spec)
    else:
        progress = _read_progress(spec, step)
        check_frozen(progress.frozen, spec.frozen.hashes, place=spec.run_dir)
        if abstract.ema is not None and not spec.checkpoints.on_disk.has(step, EMA):
            say(f"train.ema: the average begins with the parameters of checkpoint {step}")
        state = spec.checkpoints.restore_state(abstract, step=step)
    rollbacks.apply(progress)
    _check(progress, spec, warn)
    return state, progress


def _read_progress(spec: TrainSpec, step: int) -> TrainProgress:
    saved = spec.checkpoints.progress(step)
    if not saved:
        raise UserError(
            "checkpoint.params_only",
            f"checkpoint {step} of {spec.run_dir} has only parameters. Use --init-from.",
            place="run_dir",
        )
    if IMPORTED not in saved:
        return TrainProgress.from_json(saved)
    steps = [phase.steps for phase in spec.phases]
    if step >= sum(steps):
        raise UserError.wrong(
            "phases.too_few_steps", sum(steps), f"over the import's {step}", place="train.phases"
        )
    progress = TrainProgress.at(step, steps)
    _begin(progress, spec)
    return progress


def _begin(progress: TrainProgress, spec: TrainSpec) -> None:
    """Completes the progress of a run that has trained no step."""
    progress.frozen = {**spec.frozen.hashes}
    progress.unevaluated = spec.intervals.evaluate_first


def _check(progress: TrainProgress, spec: TrainSpec, warn: Callable[[str], None]) -> None:
    """Raises UserError if phases are missing, or data differ without `allow_data_change`."""
    phases = spec.phases
    if progress.phase >= len(phases):
        raise UserError(
            "phases.too_few",
            f"found {len(phases)}, but the checkpoint is in phase {progress.phase}, from 0",
            place="train.phases",
        )
    phase = phases[progress.phase]
    if progress.position is None or progress.phase_step >= phase.steps:
        return
    if not spec.allow_data_change:
        phase.loader.check(progress.position)
        return
    before = progress.position
    progress.position = after = phase.loader.resume_position(before)
    if differences := before.differences(after.fingerprint):
        warn(
            f"--allow-data-change: {describe_differences(differences)}; phase {progress.phase} had "
            f"read {before.example_index:,} rows and resumes at row {after.example_index:,} "
            f"{'of the same order' if after.example_index else 'of a new order'}"
        )
