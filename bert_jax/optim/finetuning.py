"""The optimizer of fine-tuning: corrected Adam, rates by layer, freezing and gradual unfreezing."""

import math
from typing import Any, Final

import jax
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.errors import UserError
from bert_jax.optim.layerwise import (
    mask_frozen_updates,
    scale_by_unfrozen_adam,
    scale_by_unit,
    unfreezes_later,
)
from bert_jax.optim.optimizer import (
    FlatAxes,
    decay_mask,
    scale_by_bert_adam,
    scale_by_given_rate,
    without,
)
from bert_jax.optim.schedule import Schedule, slanted_triangular, warmup_constant, warmup_linear
from bert_jax.optim.sections import FinetuneOptimizerSection
from bert_jax.optim.units import (
    NEVER,
    frozen_units,
    unfreeze_schedule,
    unit_heights,
    unit_names,
    unit_of_parameters,
)
from bert_jax.parallel.compiling import made_once

# ULMFiT's (arXiv 1801.06146, section 3.2): the share of the steps in which the rate rises, and the
# highest rate over the lowest.
CUT_FRACTION: Final = 0.1
RATIO: Final = 32.0

Axes = Any  # a nested dict of LogicalAxes


def make_schedule(section: FinetuneOptimizerSection, *, total_steps: int) -> Schedule:
    """Returns the learning rate by step of a run of `total_steps`, at least 1."""
    peak = section.learning_rate
    if section.schedule == "slanted_triangular":
        return slanted_triangular(
            peak=peak, steps=total_steps, cut_fraction=CUT_FRACTION, ratio=RATIO
        )
    warmup = math.ceil(total_steps * section.warmup_fraction)
    if section.schedule == "constant":
        return warmup_constant(peak=peak, warmup_steps=warmup)
    return warmup_linear(peak=peak, steps=total_steps, warmup_steps=warmup)


def make_finetune_optimizer(
    section: FinetuneOptimizerSection,
    axes: Axes,
    *,
    depth: int,
    steps_per_epoch: int,
) -> optax.GradientTransformationExtraArgs:
    """Returns the optimizer; `update` is given the learning rate, as that of `make_optimizer`.

    `axes`: the logical axes of every parameter; `depth`: layers of the encoder.

    Raises:
        UserError: `freeze` names what the model does not have.
    """
    given = without(section, "learning_rate", "schedule", "warmup_fraction")
    flat = tuple(flatten_dict(axes).items())
    # Of no consequence where nothing is unfrozen.
    steps_per_epoch = 0 if section.unfreeze_every is None else steps_per_epoch
    return _make_optimizer(given, flat, depth=depth, steps_per_epoch=steps_per_epoch)


@made_once
def _make_optimizer(
    section: FinetuneOptimizerSection, axes: FlatAxes, *, depth: int, steps_per_epoch: int
) -> optax.GradientTransformationExtraArgs:
    # One flat chain, as `make_optimizer` makes it, so that `find_moments` reads either.
    nested = unflatten_dict(dict(axes))
    parts = _direction(section, nested, depth=depth, steps_per_epoch=steps_per_epoch)
    return optax.chain(*parts, scale_by_given_rate())


def first_steps(
    section: FinetuneOptimizerSection, *, depth: int, steps_per_epoch: int
) -> dict[str, int | None]:
    """Returns the step from which each unit trains, None for never.

    Two layers, ``freeze=("embeddings",)``, ``unfreeze_every=1``, 10 steps an epoch →
    ``{"embeddings": None, "layers.0": 20, "layers.1": 10, "pooler": 0, "heads": 0}``. A run that
    ends before the largest of them never trains that unit.

    Raises:
        UserError: `freeze` names what no encoder of this depth has.
    """
    trains_from = _unfreeze_schedule(section, depth=depth, steps_per_epoch=steps_per_epoch)
    return {
        name: None if step == NEVER else int(step)
        for name, step in zip(unit_names(depth), trains_from, strict=True)
    }


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


def _unfreeze_schedule(
    section: FinetuneOptimizerSection, *, depth: int, steps_per_epoch: int
) -> np.ndarray:
    epochs = section.unfreeze_every
    return unfreeze_schedule(
        frozen_units(section.freeze, depth=depth),
        depth=depth,
        unfreeze_steps=None if epochs is None else epochs * steps_per_epoch,
    )


def _direction(
    section: FinetuneOptimizerSection, axes: Axes, *, depth: int, steps_per_epoch: int
) -> list[optax.GradientTransformation]:
    """Returns gradients → what the learning rate is multiplied with; parts without effect left out.

    Frozen gradients to zero → clip (by the norm of what trains) → Adam → decay → factor of the
    layer → frozen updates to zero. A frozen parameter keeps its bits and moments of zero.
    """
    trains_from = _unfreeze_schedule(section, depth=depth, steps_per_epoch=steps_per_epoch)
    if "pooler" in section.freeze and "pooler" not in axes:
        raise UserError(
            'optimizer.freeze: found "pooler", which this task\'s model does not have, allowed: '
            "embeddings, encoder, layers.N, layers.N-M"
        )
    units = unit_of_parameters(axes, depth=depth)
    keep = [mask_frozen_updates(trains_from, units)] if trains_from.any() else []
    parts = [*keep]
    if section.clip_norm is not None:
        parts.append(optax.clip_by_global_norm(section.clip_norm))
    parts.append(_adam(section, trains_from, units))
    parts.append(optax.add_decayed_weights(section.weight_decay, mask=decay_mask))
    if section.layer_decay != 1.0:
        parts.append(scale_by_unit(section.layer_decay ** unit_heights(depth), units))
    return [*parts, *keep]


def _adam(
    section: FinetuneOptimizerSection, trains_from: np.ndarray, units: Any
) -> optax.GradientTransformation:
    if not section.bias_correction:
        return scale_by_bert_adam(section.beta1, section.beta2, section.eps)
    if unfreezes_later(trains_from):
        return scale_by_unfrozen_adam(
            trains_from, units, beta1=section.beta1, beta2=section.beta2, eps=section.eps
        )
    return optax.scale_by_adam(section.beta1, section.beta2, section.eps)
