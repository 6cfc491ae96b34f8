"""The state that a run begins or resumes with, and the data that rollbacks have left out."""

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
from bert_jax.train.progress import IMPORTED, TrainProgress
from bert_jax.train.spec import TrainSpec
from bert_jax.train.state import TrainState, draw_params, initialise, laid_out_as
from bert_jax.validation import validate

ROLLBACKS: Final = "rollbacks.json"


class Rollback(Section):
    """A return to a checkpoint."""

    checkpoint: int = pydantic.Field(ge=0)  # the step that the run went back to; 0 is its start
    bad_step: int = pydantic.Field(ge=1)
    reason: str  # what was wrong with the step
    # Loss, gradient norm and their limits; a figure that was not finite is missing
    figures: dict[str, float] = pydantic.Field(default_factory=dict)
    phase: int = pydantic.Field(ge=0)  # of the bad step
    first: int = pydantic.Field(ge=0)  # the first row that is left out, counted over the phase
    position: DataPosition  # where the data continues

    def apply(self, progress: TrainProgress) -> None:
        """Moves the progress of the checkpoint past the data."""
        if progress.phase < self.phase:
            progress.start_phase(self.phase)
        progress.position = self.position


class RollbackFile(Section):
    """The content of `ROLLBACKS`."""

    rollbacks: tuple[Rollback, ...] = ()


class RollbackLog:
    """The rollbacks of a run, oldest first, in `entries`.

    The file is written when a rollback is decided: a run that is stopped before the next checkpoint
    resumes past the same data.
    """

    def __init__(self, run_dir: epath.Path) -> None:
        """Reads the file, if there is one; raises UserError: it is damaged."""
        self._path = run_dir / ROLLBACKS
        self.entries: tuple[Rollback, ...] = ()
        if self._path.exists():
            found = validate(RollbackFile, read_sealed(self._path), source=str(self._path))
            self.entries = found.rollbacks

    def apply(self, progress: TrainProgress) -> None:
        """Moves the progress of a checkpoint past the data that rollbacks to it have left out.

        Rollbacks to later checkpoints are forgotten: they will be decided again.
        """
        self.entries = tuple(e for e in self.entries if e.checkpoint <= progress.step)
        if before := self.to(progress.step):
            before[-1].apply(progress)

    def to(self, step: int) -> list[Rollback]:
        """Returns the rollbacks to one checkpoint; the last has the data position."""
        return [entry for entry in self.entries if entry.checkpoint == step]

    def add(self, bad: BadStep, progress: TrainProgress, *, at: TrainProgress) -> Rollback:
        """Writes down a rollback from the progress `at` a bad step to another, and applies it.

        `progress` is the checkpoint's, past the data of earlier rollbacks to it.
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
    spec: TrainSpec, abstract: TrainState, rollbacks: RollbackLog, *, say: Callable[[str], None]
) -> tuple[TrainState, TrainProgress]:
    """Returns the last checkpoint's state and progress, or fresh ones where there is none.

    The progress is past the data that rollbacks to that checkpoint have left out. `say` gets a line
    if the data have changed, and may. Raises UserError: the checkpoint is of another model, or of
    other phases or data.
    """
    step = spec.checkpoints.on_disk.newest()
    if step is None:
        draw = functools.partial(draw_params, spec.step.model, seed=spec.seed)
        params = laid_out_as(spec.initial_params(abstract.params, draw), abstract.params)
        state = initialise(params, spec.step.optimizer, abstract, seed=spec.seed)
        progress = TrainProgress()
    else:
        progress = _read_progress(spec, step)
        state = spec.checkpoints.restore_state(abstract, step=step)
    rollbacks.apply(progress)
    _check(progress, spec, say)
    return state, progress


def _read_progress(spec: TrainSpec, step: int) -> TrainProgress:
    saved = spec.checkpoints.progress(step)
    if not saved:
        raise UserError(
            "checkpoint.params_only",
            "found {found}, whose checkpoint {step} has parameters only. Use a new directory with "
            "--init-from {found}.",
            place="run_dir",
            found=spec.run_dir,
            step=step,
        )
    if IMPORTED not in saved:
        return TrainProgress.from_json(saved)
    steps = [phase.steps for phase in spec.phases]
    if step >= sum(steps):
        raise UserError(
            "phases.too_few_steps",
            "found {found} steps in all, but the imported checkpoint is at step {step}. Use more "
            "steps, or a new run_dir with --init-from.",
            place="train.phases",
            found=sum(steps),
            step=step,
        )
    return TrainProgress.at(step, steps)


def _check(progress: TrainProgress, spec: TrainSpec, say: Callable[[str], None]) -> None:
    """Refuses a checkpoint of other phases, or of other data unless these may change."""
    phases = spec.phases
    if progress.phase >= len(phases):
        raise UserError(
            "phases.too_few",
            "found {found} phases, but the checkpoint is in phase {phase}, counted from 0. Use the "
            "phases of the checkpoint, or more.",
            place="train.phases",
            found=len(phases),
            phase=progress.phase,
        )
    phase = phases[progress.phase]
    if progress.position is None or progress.phase_step >= phase.steps:
        return
    if not spec.allow_data_change:
        phase.loader.check(progress.position)
        return
    before = progress.position
    progress.position = after = phase.loader.go_on(before)
    if differences := before.differences(after.fingerprint):
        say(
            f"--allow-data-change: {describe_differences(differences)}; phase {progress.phase} had "
            f"read {before.example_index:,} rows and resumes at row {after.example_index:,} "
            f"{'of the same order' if after.example_index else 'of a new order'}"
        )
