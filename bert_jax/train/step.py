"""The optimizer step and the evaluation step, as pure functions for compilation."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from bert_jax.model.row_key import fold_in, numbered_rows
from bert_jax.optim.optimizer import MomentsState, schedule_count
from bert_jax.optim.schedule import Schedule, learning_rate
from bert_jax.parallel.compiling import made_once
from bert_jax.parallel.sharding_rules import constrain, gathered
from bert_jax.task import Batch, Metrics, Params, Rngs, Task
from bert_jax.train.frozen import bind, gather
from bert_jax.train.sections import EmaSection
from bert_jax.train.state import ModelDefinition, TrainState

# (parameters, batch, frozen parameters, index of the batch) → metrics
EvaluationStep = Callable[[Params, Batch, Params, jax.Array], Metrics]


class StepLimits(NamedTuple):
    """Limits above which a step's update is withheld. NaN and infinity always exceed them."""

    loss: Any = np.float32(np.inf)  # float32 []: loss of the global batch
    gradient_norm: Any = np.float32(np.inf)  # float32 []: norm before clipping


class StepFigures(NamedTuple):
    """The metrics and gradients of a step, replicated over the mesh."""

    metrics: Metrics
    # Sums of squares, nested like the parameters: float32 [], or [layers] of a stacked parameter
    gradient_squares: Params


# (state, batch, limits, schedule, frozen parameters) → new state, figures
TrainStep = Callable[
    [TrainState, Batch, StepLimits, Schedule, Params], tuple[TrainState, StepFigures]
]

# Metrics that every step adds to the task's metrics. The loop does not report `HEALTHY`.
STEP_METRICS: Final = ("learning_rate", "gradient_norm")
HEALTHY: Final = "healthy"

# Index of the subkey for draws. Models use small indices.
_DRAWS: Final = 2**31 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepSpec:
    """The inputs of `make_train_step`. Equal specs share one step, see `made_once`."""

    task: Task
    model: ModelDefinition
    optimizer: optax.GradientTransformationExtraArgs  # from `make_optimizer`
    ema: EmaSection | None = None  # moving average of the parameters


@made_once
def make_train_step(spec: StepSpec, *, accumulation: int) -> TrainStep:
    """Returns ``step(state, batch, limits, schedule, frozen) -> (state, figures)``.

    Limits and schedule are arguments, so that all learning rates, warm-ups and numbers of steps
    share one program. The schedule is evaluated at the number of applied updates.

    The loss of each of the `accumulation` microbatches is divided by counts over the global batch.
    Rows have the dropout masks and draws of their places in the global batch. So accumulation
    reduces memory and does not change the loss.

    If loss or gradient are not finite or exceed their limits, the step leaves the state unchanged
    and marks it as unhealthy. Later steps leave an unhealthy state unchanged, until the host
    responds (`bert_jax.train.bad_steps`).
    """
    gradients = make_gradients(spec.task, spec.model, accumulation=accumulation)

    def step(
        state: TrainState, batch: Batch, limits: StepLimits, schedule: Schedule, frozen: Params
    ) -> tuple[TrainState, StepFigures]:
        value, metrics, grads = gradients(state, batch, frozen)
        squares = _squares_by_layer(grads, spec.model.axes)
        norm = jnp.sqrt(sum(square.sum() for square in jax.tree.leaves(squares)))
        finite = jnp.isfinite(value) & jnp.isfinite(norm)
        within = (value <= limits.loss) & (norm <= limits.gradient_norm)
        healthy, count = state.healthy & finite & within, schedule_count(state.opt_state)
        rate = learning_rate(schedule, count)
        updates, opt_state = spec.optimizer.update(
            grads,
            state.opt_state,
            state.params,
            applied=healthy,
            gradient_norm=norm,
            learning_rate=rate,
        )
        params = cast(Params, optax.apply_updates(state.params, updates))
        ema = state.ema
        if spec.ema is not None:
            # TensorFlow's warm-up. Otherwise the random start would count for thousands of steps.
            decay = jnp.minimum(spec.ema.decay, (1 + count) / (10 + count))
            ema = cast(Params, optax.incremental_update(params, cast(Params, ema), 1 - decay))
        changed = TrainState(state.step + 1, state.rng, params, opt_state, healthy, ema)
        new_state = _where(healthy, changed, state._replace(healthy=healthy))

        one = jnp.ones((), jnp.float32)
        metrics = metrics | {
            "loss": (value, one),
            "gradient_norm": (norm, one),
            "learning_rate": (rate, one),
            HEALTHY: (healthy.astype(jnp.float32), one),
        }
        return new_state, StepFigures(metrics, squares)

    return step


def _where(healthy: jax.Array, changed: TrainState, kept: TrainState) -> TrainState:
    """Returns `changed` if healthy, else `kept`. The optimizer has already chosen the moments."""

    def choose(new: Any, old: Any) -> Any:
        return new if isinstance(new, MomentsState) else jnp.where(healthy, new, old)

    return jax.tree.map(choose, changed, kept, is_leaf=lambda node: isinstance(node, MomentsState))


def make_gradients(
    task: Task, model: ModelDefinition, *, accumulation: int
) -> Callable[[TrainState, Batch, Params], tuple[jax.Array, Metrics, Params]]:
    """Returns ``gradients(state, batch, frozen) -> (loss, metrics, gradients)``."""

    def gradients(
        state: TrainState, batch: Batch, frozen: Params
    ) -> tuple[jax.Array, Metrics, Params]:
        divisors, params = task.divisors(batch), state.params
        if accumulation > 1:  # gather once instead of for every microbatch
            params = jax.tree.map(gathered, params, model.axes)
            frozen = gather(task, frozen)

        def loss(params: Params, microbatch: Batch, key: jax.Array) -> tuple[jax.Array, Metrics]:
            return task.loss(
                nnx.merge(model.graphdef, params),
                microbatch,
                divisors=divisors,
                rngs=Rngs(jax.random.fold_in(key, _DRAWS), key, state.step),
                frozen=bind(task, frozen),
            )

        grad = jax.value_and_grad(loss, has_aux=True)
        return accumulate(grad, params, batch, dropout_key(state), accumulation)

    return gradients


def _squares_by_layer(grads: Params, axes: Mapping[str, Any]) -> Params:
    """Returns the sum of squares of each gradient: [], or [layers] if the parameter is stacked.

    `axes` are the logical axes, nested like the gradients.
    """

    def squares(grad: jax.Array, names: tuple[str, ...]) -> jax.Array:
        over = tuple(at for at, name in enumerate(names) if name != "layers")
        return jnp.square(grad).sum(over)

    return jax.tree.map(squares, grads, axes)


@made_once
def make_evaluation_step(task: Task, model: ModelDefinition) -> EvaluationStep:
    """Returns ``step(params, batch, frozen, index) -> metrics``, without dropout.

    `index` is the index of the batch. The draws of a row are a function of the number of its
    example, ``index * rows + row``. So they do not depend on the batch size.
    """

    def step(params: Params, batch: Batch, frozen: Params, index: jax.Array) -> Metrics:
        rows = len(next(iter(batch.values())))
        key = jax.random.key(0, impl="threefry2x32")
        _, metrics = task.loss(
            nnx.merge(model.graphdef, params),
            batch,
            divisors=task.divisors(batch),
            rngs=Rngs(numbered_rows(key, first=index * rows, step=1, rows=rows), None),
            frozen=bind(task, frozen),
        )
        return metrics

    return step


def dropout_key(state: TrainState) -> jax.Array:
    """Returns the dropout key of the step, from the run's key and the step number."""
    run_key = jax.random.wrap_key_data(state.rng, impl="threefry2x32")
    return fold_in(run_key, state.step)


# (parameters, microbatch, dropout key) → (loss, metrics), gradients
GradientFunction = Callable[[Params, Batch, jax.Array], tuple[tuple[jax.Array, Metrics], Params]]


def accumulate(
    grad: GradientFunction, params: Params, batch: Batch, key: jax.Array, parts: int
) -> tuple[jax.Array, Metrics, Params]:
    """Returns loss, metrics and gradients, summed over `parts` microbatches in a loop.

    `key` is the dropout key of the step. Each microbatch has the masks of the whole batch.
    """
    if parts == 1:
        (value, metrics), grads = grad(params, batch, key)
        return value, metrics, grads
    microbatches = {name: cut(array, parts) for name, array in batch.items()}

    def add(total: Any, part: tuple[jax.Array, Mapping[str, jax.Array]]) -> tuple[Any, None]:
        index, microbatch = part
        (value, metrics), grads = grad(params, microbatch, part_key(key, index, microbatch, parts))
        return jax.tree.map(jnp.add, total, (value, metrics, grads)), None

    first = jax.tree.map(lambda array: array[0], microbatches)
    (value, metrics), grads = jax.eval_shape(grad, params, first, key)
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (value, metrics, grads))
    total, _ = jax.lax.scan(add, zero, (jnp.arange(parts), microbatches))
    return total


def cut(array: jax.Array, parts: int) -> jax.Array:
    """Returns [parts, B/parts, …] from [B, …]; no row moves to another device.

    Row `r` becomes row ``r // parts`` of part ``r % parts``.
    """
    rows = array.shape[0]
    cut = array.reshape(rows // parts, parts, *array.shape[1:]).swapaxes(0, 1)
    return constrain(cut, "microbatches", "batch", *("rest",) * (array.ndim - 1))


def part_key(key: jax.Array, index: jax.Array, part: Batch, parts: int) -> jax.Array:
    """Returns the key of part `index` of `cut`. `key` is the key of the whole batch."""
    rows = len(next(iter(part.values())))
    return numbered_rows(key, first=index, step=parts, rows=rows)
