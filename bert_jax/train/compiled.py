"""Steps compiled ahead of time, which cannot compile a second time behind one's back.

A compiled program refuses arrays of another shape or layout with an error. That is how the loop
keeps the promise that nothing compiles after the first step of a phase.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax
from jax.sharding import Mesh

from bert_jax.parallel.rules import replicated
from bert_jax.task import Batch, Metrics, Task
from bert_jax.train.state import ModelDefinition, TrainState
from bert_jax.train.step import RngName, make_evaluation_step, make_train_step


def lower_train_step(
    task: Task,
    model: ModelDefinition,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    state: TrainState,
    batch: Batch,
    *,
    accumulation: int,
    rng: RngName,
) -> jax.stages.Lowered:
    """Returns the train step lowered for the layout of `state` and `batch`.

    Call it under `jax.set_mesh`. The state is donated: the old one's memory becomes the new one's.

    Args:
        task: the objective.
        model: its structure.
        optimizer: from `make_optimizer`.
        schedule: the learning rate, to report it.
        state: arrays, or the shapes of `abstract_state`.
        batch: arrays, or shapes with layouts.
        accumulation: microbatches per step.
        rng: the generator of dropout bits.
    """
    step = make_train_step(task, model, optimizer, schedule, accumulation=accumulation, rng=rng)
    layout = jax.tree.map(lambda leaf: leaf.sharding, state)
    jitted = jax.jit(step, donate_argnums=0, out_shardings=(layout, layout.step))
    return jitted.lower(state, batch)


def compile_evaluation(
    task: Task, model: ModelDefinition, mesh: Mesh
) -> Callable[[Any, Batch], Metrics]:
    """Returns the evaluation step, compiled at its first call for that call's shapes."""
    jitted = jax.jit(make_evaluation_step(task, model), out_shardings=replicated(mesh))
    compiled: list[jax.stages.Compiled] = []

    def evaluate(params: Any, batch: Batch) -> Metrics:
        if not compiled:
            compiled.append(jitted.lower(params, batch).compile())
        return compiled[0](params, batch)

    return evaluate
