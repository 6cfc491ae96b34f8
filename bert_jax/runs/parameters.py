"""A run's checkpoint onto this machine's devices."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import optax

from bert_jax.errors import UserError, did_you_mean
from bert_jax.optim.optimizer import MomentsState, find_moments, make_optimizer
from bert_jax.optim.sections import OptimizerSection
from bert_jax.parallel.mesh import initialise, make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.runs.directory import CHECKPOINTS, Run
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.sections import CheckpointSection
from bert_jax.train.state import ModelDefinition, abstract_params, abstract_state, define_model


class LoadedParams(NamedTuple):
    """Parameters of one checkpoint on a mesh."""

    step: int
    model: ModelDefinition
    params: Any
    mesh: jax.sharding.Mesh


def load_params(
    run: Run,
    *,
    checkpoint: str,
    mesh: MeshSection | None = None,
    one_device: bool = False,
    on: jax.sharding.Mesh | None = None,
) -> LoadedParams:
    """Reads the parameters of one of a run's checkpoints onto this machine's devices.

    Args:
        run: opened.
        checkpoint: `last`, `best`, a step, or `auto`: the best of a fine-tuned run, else the last.
        mesh: devices to use; None for all there are, whatever the run was trained on.
        one_device: keep one copy on the first device; on several, each could hold a whole one.
        on: a mesh that there is already, instead of the two.

    Raises:
        UserError: no such checkpoint.
    """
    if on is None:
        devices = mesh or MeshSection()
        initialise(devices)
        on = make_mesh(devices, jax.devices()[:1] if one_device else None)
    with Checkpointer(run.directory / CHECKPOINTS, CheckpointSection()) as checkpointer:
        if checkpoint == "auto":
            ranked = run.is_fine_tuned and checkpointer.best_step() is not None
            checkpoint = "best" if ranked else "last"
        step = _find_step(checkpointer, checkpoint, where=str(run.directory))
        model = define_model(run.build)
        params = checkpointer.restore_params(abstract_params(model, on), step=step)
    return LoadedParams(step, model, params, on)


def load_moments(run: Run, loaded: LoadedParams) -> MomentsState | None:
    """Reads the moments that belong to parameters; None where they are not the release's Adam's.

    Args:
        run: opened.
        loaded: its parameters.
    """
    section = run.section("optimizer", OptimizerSection, verb="export")
    with Checkpointer(run.directory / CHECKPOINTS, CheckpointSection()) as checkpointer:
        if section.name != "adamw" or not checkpointer.has_optimizer(loaded.step):
            return None
        # The learning rate is no part of the state.
        optimizer = make_optimizer(section, optax.constant_schedule(0.0), loaded.model.axes)
        abstract = abstract_state(loaded.model, optimizer, loaded.mesh)
        restored = checkpointer.restore_optimizer(abstract, step=loaded.step)
    return find_moments(restored.opt_state)


def _find_step(checkpointer: Checkpointer, asked: str, *, where: str) -> int:
    steps = checkpointer.all_steps()
    if not steps:
        raise UserError(f"{where}: no checkpoint in it yet")
    if asked == "last":
        return steps[-1]
    if asked == "best":
        best = checkpointer.best_step()
        if best is None:
            raise UserError(f"{where}: no checkpoint was evaluated, so none is the best")
        return best
    if asked.isdigit() and int(asked) in steps:
        return int(asked)
    allowed = ["last", "best", *map(str, steps)]
    near = did_you_mean(asked, allowed)
    raise UserError(f'--checkpoint: found "{asked}", allowed: {", ".join(allowed)}{near}')
