"""The optimizer of fine-tuning: corrected Adam, rates by layer, frozen parts."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.errors import UserError
from bert_jax.optim.optimizer import (
    FlatAxes,
    decay_mask,
    scale_by_bert_adam,
    scale_by_given_rate,
    without,
)
from bert_jax.optim.schedule import Schedule, warmup_constant, warmup_linear
from bert_jax.optim.sections import FinetuneOptimizerSection
from bert_jax.optim.units import frozen_units, unit_heights, unit_of_parameters
from bert_jax.parallel.compiling import made_once

Axes = Any  # a nested dict of LogicalAxes


def make_schedule(section: FinetuneOptimizerSection, *, total_steps: int) -> Schedule:
    """Returns the learning rate by step of a run of `total_steps`, at least 1."""
    peak = section.learning_rate
    warmup = math.ceil(total_steps * section.warmup_fraction)
    if section.schedule == "constant":
        return warmup_constant(peak=peak, warmup_steps=warmup)
    return warmup_linear(peak=peak, steps=total_steps, warmup_steps=warmup)


def make_finetune_optimizer(
    section: FinetuneOptimizerSection, axes: Axes, *, depth: int
) -> optax.GradientTransformationExtraArgs:
    """Returns the optimizer; `update` is given the learning rate, as that of `make_optimizer`.

    `axes`: the logical axes of every parameter; `depth`: layers of the encoder.

    Raises:
        UserError: `freeze` names what the model does not have.
    """
    given = without(section, "learning_rate", "schedule", "warmup_fraction")
    return _make_optimizer(given, tuple(flatten_dict(axes).items()), depth=depth)


@made_once
def _make_optimizer(
    section: FinetuneOptimizerSection, axes: FlatAxes, *, depth: int
) -> optax.GradientTransformationExtraArgs:
    """Returns one flat chain without parts that have no effect; `find_moments` reads it.

    Frozen gradients to zero → clip (by the norm of what trains) → Adam → decay → factor of the
    layer → frozen updates to zero. A frozen parameter keeps its bits and moments of zero.
    """
    nested = unflatten_dict(dict(axes))
    frozen = frozen_units(section.freeze, depth=depth)
    if "pooler" in section.freeze and "pooler" not in nested:
        raise UserError(
            'optimizer.freeze: found "pooler", which this task\'s model does not have, allowed: '
            "embeddings, encoder, layers.N, layers.N-M"
        )
    units = unit_of_parameters(nested, depth=depth)
    keep = [_zero_frozen(frozen, units)] if frozen.any() else []
    parts = [*keep]
    if section.clip_norm is not None:
        parts.append(optax.clip_by_global_norm(section.clip_norm))
    adam = optax.scale_by_adam if section.bias_correction else scale_by_bert_adam
    parts.append(adam(section.beta1, section.beta2, section.eps))
    parts.append(optax.add_decayed_weights(section.weight_decay, mask=decay_mask))
    if section.layer_decay != 1.0:
        parts.append(_scale_by_unit(section.layer_decay ** unit_heights(depth), units))
    return optax.chain(*parts, *keep, scale_by_given_rate())


def frozen_parameters(section: FinetuneOptimizerSection, axes: Axes, *, depth: int) -> Any:
    """Returns the nested dicts of parameters with True for those that never change at all.

    A loss whose parameters pass through `jax.lax.stop_gradient` where this is True has no backward
    pass below what trains. A parameter that holds all layers is True only if all are frozen.

    Raises:
        UserError: `freeze` names what no encoder of this depth has.
    """
    frozen = frozen_units(section.freeze, depth=depth)
    units = unit_of_parameters(axes, depth=depth)
    return jax.tree.map(lambda unit: bool(frozen[unit].all()), units)


def _scale_by_unit(factors: np.ndarray, units: Any) -> optax.GradientTransformation:
    """Multiplies every update by its unit's factor, of `factors` float [units]."""
    factors = factors.astype(np.float32)
    return optax.stateless(
        lambda updates, params: jax.tree.map(lambda u, unit: u * factors[unit], updates, units)
    )


def _zero_frozen(frozen: np.ndarray, units: Any) -> optax.GradientTransformation:
    """Replaces the updates of frozen units (bool [units]) by zeros.

    The zeros of a wholly frozen parameter depend on no gradient, so the compiler drops the
    gradient's computation: no backward pass runs below the lowest unit that trains.
    """

    def mask(update: jax.Array, unit: np.ndarray) -> jax.Array:
        held = frozen[unit]
        if not held.any():
            return update
        zeros = jnp.zeros_like(update)
        return zeros if held.all() else jnp.where(held, zeros, update)

    return optax.stateless(lambda updates, params: jax.tree.map(mask, updates, units))
