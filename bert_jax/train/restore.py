"""The state that a run begins or goes on with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bert_jax.data.loader.data_position import describe_differences
from bert_jax.errors import UserError
from bert_jax.train.progress import IMPORTED, TrainProgress
from bert_jax.train.rollbacks import RollbackLog
from bert_jax.train.spec import Phase, TrainSpec
from bert_jax.train.state import TrainState, draw_params, initialise, laid_out_as

if TYPE_CHECKING:  # it brings Orbax with it
    from bert_jax.train.checkpoint import Checkpointer


def restore_or_initialise(
    spec: TrainSpec, abstract: TrainState, rollbacks: RollbackLog, *, say: Callable[[str], None]
) -> tuple[TrainState, TrainProgress]:
    """Returns the last checkpoint's state and progress, or fresh ones where there is none.

    The progress is past the data that rollbacks to that checkpoint have left out. `say` gets a line
    if the data have changed, and may. Raises UserError: the checkpoint is of another model, or of
    other phases or data.
    """
    step = spec.checkpoints.latest_step()
    if step is None:
        draw = functools.partial(draw_params, spec.step.model, seed=spec.seed)
        params = laid_out_as(spec.initial_params(abstract.params, draw), abstract.params)
        state = initialise(params, spec.step.optimizer, abstract, seed=spec.seed)
        progress = TrainProgress()
    else:
        state, progress = _restore(spec, abstract, step=step)
    rollbacks.apply(progress)
    _check(progress, spec, say)
    return state, progress


def _restore(
    spec: TrainSpec, abstract: TrainState, *, step: int
) -> tuple[TrainState, TrainProgress]:
    if not spec.checkpoints.has_optimizer(step):
        raise UserError(
            f"run_dir: found {spec.run_dir}, whose checkpoint {step} holds parameters alone, "
            f"allowed: a new directory, with --init-from {spec.run_dir}"
        )
    state = restore_state(spec.checkpoints, abstract, step=step)
    return state, _progress(spec.checkpoints.progress(step), step=step, phases=spec.phases)


def restore_state(checkpoints: Checkpointer, abstract: TrainState, *, step: int) -> TrainState:
    """Reads parameters and optimizer into the layout of `abstract`.

    Raises UserError: a tensor is missing, unexpected, or of another shape or dtype.
    """
    params = checkpoints.restore_params(abstract.params, step=step)
    return checkpoints.restore_optimizer(abstract, step=step)._replace(params=params)


def _progress(saved: Mapping[str, Any], *, step: int, phases: Sequence[Phase]) -> TrainProgress:
    if IMPORTED not in saved:
        return TrainProgress.from_json(saved)
    steps = [phase.steps for phase in phases]
    if step >= sum(steps):
        raise UserError(
            f"train.phases: found {sum(steps)} steps in all, but the imported checkpoint is at "
            f"step {step}; allowed: more, or a new run_dir with --init-from"
        )
    return TrainProgress.at(step, steps)


def _check(progress: TrainProgress, spec: TrainSpec, say: Callable[[str], None]) -> None:
    """Refuses a checkpoint of other phases, or of other data unless these may change."""
    phases = spec.phases
    if progress.phase >= len(phases):
        raise UserError(
            f"train.phases: found {len(phases)}, but the checkpoint is in phase {progress.phase} "
            f"(counted from 0); allowed: the phases it was made with, or more"
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
            f"read {before.example_index:,} rows and goes on from row {after.example_index:,} "
            f"{'of the same order' if after.example_index else 'in a new order'}"
        )
