"""The optimizer of fine-tuning: Adam with bias correction, learning rates by layer, freezing.

The units of a model are, in order, the embeddings, each layer, the pooler, and all heads together.
All parameters of a unit share a learning rate, and are frozen together. An array with the axis
[units] has one entry per unit.
"""

import math
import re
from collections.abc import Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.errors import UserError, commas, did_you_mean
from bert_jax.optim.optimizer import (
    FlatAxes,
    decay_mask,
    scale_by_bert_adam,
    scale_by_given_rate,
    without,
)
from bert_jax.optim.schedule import Schedule, warmup_constant, warmup_linear
from bert_jax.optim.sections import FinetuneOptimizerSection
from bert_jax.parallel.compiling import made_once
from bert_jax.parallel.parameter_groups import ParameterGroups

Axes = Any  # a nested dict of LogicalAxes

_LAYERS: Final = re.compile(r"layers\.([0-9]+)(?:-([0-9]+))?")


def make_schedule(section: FinetuneOptimizerSection, *, total_steps: int) -> Schedule:
    """Returns the schedule for a run of `total_steps`, which is at least 1."""
    peak = section.learning_rate
    warmup = math.ceil(total_steps * section.warmup_fraction)
    if section.schedule == "constant":
        return warmup_constant(peak=peak, warmup_steps=warmup)
    return warmup_linear(peak=peak, steps=total_steps, warmup_steps=warmup)


def make_finetune_optimizer(
    section: FinetuneOptimizerSection, axes: Axes, *, groups: ParameterGroups, depth: int
) -> optax.GradientTransformationExtraArgs:
    """Returns the optimizer. Its `update` has an argument `learning_rate`, as in `make_optimizer`.

    `axes` are the logical axes of every parameter, `groups` the groups of the model, and `depth` is
    the number of encoder layers. Raises UserError if `freeze` names a unit that the model does not
    have.
    """
    given = without(section, "learning_rate", "schedule", "warmup_fraction")
    return _make_optimizer(given, tuple(flatten_dict(axes).items()), groups=groups, depth=depth)


@made_once
def _make_optimizer(
    section: FinetuneOptimizerSection, axes: FlatAxes, *, groups: ParameterGroups, depth: int
) -> optax.GradientTransformationExtraArgs:
    """Returns a flat chain, because `find_moments` does not search nested chains.

    Zero frozen gradients → clip (by the norm of trained units) → Adam → decay → scale by layer →
    zero frozen updates. Transformations without effect are omitted. Frozen parameters stay
    bitwise unchanged, and their moments stay zero.
    """
    nested = unflatten_dict(dict(axes))
    units = unit_of_parameters(nested, groups=groups, depth=depth)
    frozen = frozen_units(section.freeze, depth=depth)
    has_pooler = any((unit == depth + 1).any() for unit in jax.tree.leaves(units))
    if "pooler" in section.freeze and not has_pooler:
        raise UserError(
            "optimizer.freeze_pooler", "the model has no pooler", place="optimizer.freeze"
        )
    zero_frozen = [_zero_frozen(frozen, units)] if frozen.any() else []
    parts = [*zero_frozen]
    if section.clip_norm is not None:
        parts.append(optax.clip_by_global_norm(section.clip_norm))
    adam = optax.scale_by_adam if section.bias_correction else scale_by_bert_adam
    parts.append(adam(section.beta1, section.beta2, section.eps))
    parts.append(optax.add_decayed_weights(section.weight_decay, mask=decay_mask))
    if section.layer_decay != 1.0:
        below_heads = np.array([depth + 1, *range(depth, 0, -1), 0, 0], np.int32)  # [units]
        parts.append(_scale_by_unit(section.layer_decay**below_heads, units))
    return optax.chain(*parts, *zero_frozen, scale_by_given_rate())


def frozen_parameters(
    section: FinetuneOptimizerSection, axes: Axes, *, groups: ParameterGroups, depth: int
) -> Any:
    """Returns a nested dict like the parameters: True if a parameter is frozen in all layers.

    Apply `jax.lax.stop_gradient` to these parameters, so that the backward pass ends at the lowest
    trained unit. Raises UserError if `freeze` names a unit that no encoder of this depth has.
    """
    frozen = frozen_units(section.freeze, depth=depth)
    units = unit_of_parameters(axes, groups=groups, depth=depth)
    return jax.tree.map(lambda unit: bool(frozen[unit].all()), units)


def _scale_by_unit(factors: np.ndarray, units: Any) -> optax.GradientTransformation:
    """Multiplies every update by the factor of its unit. `factors` is float [units]."""
    factors = factors.astype(np.float32)
    return optax.stateless(
        lambda updates, params: jax.tree.map(lambda u, unit: u * factors[unit], updates, units)
    )


def _zero_frozen(frozen: np.ndarray, units: Any) -> optax.GradientTransformation:
    """Replaces the updates of frozen units by zeros. `frozen` is bool [units].

    If all units of a parameter are frozen, XLA does not compute its gradient.
    """

    def mask(update: jax.Array, unit: np.ndarray) -> jax.Array:
        held = frozen[unit]
        if not held.any():
            return update
        zeros = jnp.zeros_like(update)
        return zeros if held.all() else jnp.where(held, zeros, update)

    return optax.stateless(lambda updates, params: jax.tree.map(mask, updates, units))


def unit_of_parameters(axes: Axes, *, groups: ParameterGroups, depth: int) -> Any:
    """Returns a nested dict like the parameters, with `ParameterGroups.units` of each."""
    flat: dict[str, Any] = flatten_dict(axes, sep="/")
    units = {path: groups.units(path, names, depth=depth) for path, names in flat.items()}
    return unflatten_dict(units, sep="/")


def frozen_units(names: Sequence[str], *, depth: int) -> np.ndarray:
    """Returns a mask of the frozen units, bool [units].

    ``("embeddings", "layers.0-1")`` of three layers → ``[True, True, True, False, False, False]``

    Raises UserError for a name that `FinetuneOptimizerSection.freeze` does not allow.
    """
    frozen = np.zeros(depth + 3, np.bool_)
    for name in names:
        frozen[_span(name, depth)] = True
    return frozen


def _span(name: str, depth: int) -> slice:
    named = {
        "embeddings": slice(0, 1),
        "encoder": slice(0, depth + 1),
        "pooler": slice(depth + 1, depth + 2),
    }
    if name in named:
        return named[name]
    match = _LAYERS.fullmatch(name)
    if match is not None:
        first = int(match[1])
        last = int(match[2]) if match[2] is not None else first
        if first <= last < depth:
            return slice(first + 1, last + 2)
    # If only the layer index is out of range, there is no name to suggest.
    near = "" if match else did_you_mean(name, (*named, *(f"layers.{at}" for at in range(depth))))
    raise UserError(
        "optimizer.freeze",
        f'found "{name}", allowed: {commas(named)}, layers.N or layers.N-M to {depth - 1}{near}',
        place="optimizer.freeze",
    )
