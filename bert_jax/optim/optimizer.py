"""The optimizers of pretraining: AdamW as in BERT, LAMB, StableAdamW, and Muon."""

import math
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.optim.muon import is_matrix, scale_by_muon
from bert_jax.optim.sections import AdamSection, OptimizerSection
from bert_jax.parallel.compiling import made_once
from bert_jax.parallel.sharding_rules import LogicalAxes

Params = Any  # a nested dict of float32 arrays
Axes = Any  # a nested dict of LogicalAxes
FlatAxes = tuple[tuple[tuple[str, ...], LogicalAxes], ...]  # hashable form of Axes

NO_DECAY = ("bias", "scale")
# Settings that determine only the schedule
SCHEDULE = ("learning_rate", "warmup_steps", "warmup_start", "decay_fraction", "decay")

AnySection = TypeVar("AnySection", bound=AdamSection)


class MomentsState(NamedTuple):
    """First and second moments of the gradients, each a tree like the parameters."""

    mu: Params
    nu: Params


def make_optimizer(
    section: OptimizerSection, axes: Axes, *, pieces: int | None = None
) -> optax.GradientTransformationExtraArgs:
    """Returns the chain: clip → moments → decay → (LAMB: trust ratio) → −learning rate.

    `update` has an additional argument `learning_rate` (see `scale_by_given_rate`) and an optional
    argument `gradient_norm` (see `clip_by_given_norm`). All optimizers but AdamW need `axes` to
    find the layers in a stacked parameter. StableAdamW needs the number of `pieces` of the
    vocabulary if the axis "vocab" is padded.
    """
    needed = () if section.name == "adamw" else tuple(flatten_dict(axes or {}).items())
    counted = pieces if section.name == "stable_adamw" else None
    return _make_optimizer(without(section, *SCHEDULE), needed, counted)


@made_once
def _make_optimizer(
    section: OptimizerSection, axes: FlatAxes, pieces: int | None
) -> optax.GradientTransformationExtraArgs:
    parts, nested = [], unflatten_dict(dict(axes))
    if section.clip_norm is not None:
        parts.append(clip_by_given_norm(section.clip_norm))
    if section.name == "stable_adamw":
        parts.append(stable_adamw(section, nested, decays=decay_mask, pieces=pieces))
        return optax.chain(*parts, scale_by_given_rate())
    adam = optax.scale_by_adam if section.bias_correction else scale_by_bert_adam
    moments = adam(section.beta1, section.beta2, section.eps)
    if section.name == "muon":
        labels = {path: "muon" if is_matrix(names) else "adam" for path, names in axes}
        moments = optax.partition(
            {"muon": scale_by_muon(dict(axes)), "adam": moments}, unflatten_dict(labels)
        )
    parts += [moments, optax.add_decayed_weights(section.weight_decay, mask=decay_mask)]
    if section.name == "lamb":
        parts.append(scale_by_layer_trust_ratio(nested))
    return optax.chain(*parts, scale_by_given_rate())


def without(section: AnySection, *names: str) -> AnySection:
    """Returns a section with the named fields at their defaults.

    Sections that differ only in these fields then share one optimizer and its compiled programs.
    """
    fields = type(section).model_fields
    return section.model_copy(update={name: fields[name].default for name in names})


def clip_by_given_norm(limit: float) -> optax.GradientTransformationExtraArgs:
    """Scales gradients to a global norm of at most `limit`.

    A caller that knows the norm can pass ``update(…, gradient_norm=norm)`` (float32 []), which
    saves a pass over all gradients.
    Source: `tf.clip_by_global_norm` in google-research/bert `optimization.py`.
    """

    def update(
        updates: Params, state: Any, params: Any = None, *, gradient_norm: Any = None, **_: Any
    ) -> tuple[Params, Any]:
        del params
        norm = optax.tree.norm(updates) if gradient_norm is None else gradient_norm
        factor = limit / jnp.maximum(norm, limit)
        return jax.tree.map(lambda update: factor * update, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def scale_by_given_rate() -> optax.GradientTransformationExtraArgs:
    """Multiplies updates by ``-learning_rate``, an argument of `update`, and counts the updates.

    Since the rate is an argument, all schedules share one compiled step. Compute the rate from
    `schedule_count` of the state before the update.
    """

    def init(params: optax.Params) -> optax.ScaleByScheduleState:
        del params
        return optax.ScaleByScheduleState(count=jnp.zeros([], jnp.int32))

    def update(
        updates: Params, state: Any, params: Any = None, *, learning_rate: Any = None, **_: Any
    ) -> tuple[Params, optax.ScaleByScheduleState]:
        del params
        factor = -jnp.asarray(learning_rate, jnp.float32)
        scaled = jax.tree.map(lambda update: factor * update, updates)
        return scaled, optax.ScaleByScheduleState(count=optax.safe_increment(state.count))

    return optax.GradientTransformationExtraArgs(init, update)


def decay_mask(params: Params) -> Any:
    """Returns a tree: True for parameters with weight decay, False for biases and LayerNorm scales.

    Source: `exclude_from_weight_decay` in google-research/bert `optimization.py`.
    """
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key not in NO_DECAY, params)


def scale_by_bert_adam(
    beta1: float, beta2: float, eps: float
) -> optax.GradientTransformationExtraArgs:
    """Adam without bias correction: ``m / (√v + eps)``.

    For a bad step, ``update(…, applied=False)`` (bool [], traced) leaves the moments unchanged.
    Because `update` selects between old and new moments, XLA writes them in place. A selection
    after the update would need memory for both.
    Source: `AdamWeightDecayOptimizer` in google-research/bert `optimization.py`.
    """

    def init(params: optax.Params) -> MomentsState:
        return MomentsState(
            mu=jax.tree.map(jnp.zeros_like, params), nu=jax.tree.map(jnp.zeros_like, params)
        )

    def update(
        updates: Params, state: Any, params: Any = None, *, applied: Any = True, **_: Any
    ) -> tuple[Params, MomentsState]:
        del params

        def choose(new: jax.Array, old: jax.Array) -> jax.Array:
            return new if applied is True else jnp.where(applied, new, old)

        mu = jax.tree.map(lambda g, m: choose(beta1 * m + (1 - beta1) * g, m), updates, state.mu)
        nu = jax.tree.map(
            lambda g, v: choose(beta2 * v + (1 - beta2) * jnp.square(g), v), updates, state.nu
        )
        scaled = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
        return scaled, MomentsState(mu=mu, nu=nu)

    return optax.GradientTransformationExtraArgs(init, update)


def find_moments(opt_state: Any) -> MomentsState | None:
    """Returns the moments in `opt_state`, or None if the optimizer has bias correction."""
    return next((part for part in opt_state if isinstance(part, MomentsState)), None)


def schedule_count(opt_state: Any) -> jax.Array:
    """Returns the number of applied updates, int32 []. Skipped steps do not count."""
    counts = (part.count for part in opt_state if isinstance(part, optax.ScaleByScheduleState))
    return jnp.asarray(next(counts))


def with_moments(opt_state: Any, moments: MomentsState, *, step: int) -> Any:
    """Returns `opt_state` with other moments and an update count of `step`.

    The optimizer must be without bias correction.
    """
    count = jnp.asarray(step, jnp.int32)

    def renew(part: Any) -> Any:
        if isinstance(part, MomentsState):
            return moments
        return part._replace(count=count) if isinstance(part, optax.ScaleByScheduleState) else part

    return tuple(map(renew, opt_state))


def scale_by_layer_trust_ratio(axes: Axes) -> optax.GradientTransformation:
    """Multiplies updates by LAMB's trust ratio ``‖parameter‖ / ‖update‖`` of each layer.

    Parameters without weight decay have a ratio of 1, as in the authors' code.
    Source: arXiv 1904.00962, algorithm 2, with φ the identity.
    """

    def update(updates: Params, params: Any) -> Params:
        def scale(update: jax.Array, param: jax.Array, names: LogicalAxes, adapts: bool):
            if not adapts:
                return update
            over = tuple(i for i, name in enumerate(names) if name != "layers")
            param_norm = jnp.sqrt(jnp.square(param).sum(over, keepdims=True))
            update_norm = jnp.sqrt(jnp.square(update).sum(over, keepdims=True))
            usable = (param_norm > 0) & (update_norm > 0)
            return update * jnp.where(
                usable, param_norm / jnp.where(update_norm > 0, update_norm, 1.0), 1.0
            )

        return jax.tree.map(scale, updates, params, axes, decay_mask(params))

    return optax.stateless(update)


def stable_adamw(
    section: AdamSection, axes: Any, *, decays: Any, pieces: int | None = None
) -> optax.GradientTransformation:
    """Returns AdamW with update clipping: ``(m̂ / (√v̂ + eps) + decay · parameter) / max(1, RMS)``.

    RMS is the root mean square of ``gradient / max(√v̂, eps)`` over a parameter, or over each layer
    of a stacked parameter. It is far above 1 if the second moment lags behind the gradients. `axes`
    are the logical axes of the parameters, and `decays(params)` is True for parameters with weight
    decay. RMS leaves out the padding of the axis "vocab" after `pieces`, whose gradients are zero.

    Source: arXiv 2304.13013, algorithm 2. Its debiased β̂ are Adam's bias correction.
    """
    adam = optax.scale_by_adam(section.beta1, section.beta2, section.eps)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        grads = updates
        updates, state = adam.update(grads, state)
        nu = optax.tree.bias_correction(state.nu, section.beta2, state.count)

        def clipped(
            update: jax.Array,
            grad: jax.Array,
            nu: jax.Array,
            param: jax.Array,
            names: LogicalAxes,
            decays: bool,
        ) -> jax.Array:
            over = tuple(at for at, name in enumerate(names) if name != "layers")
            ratio = jnp.square(grad) / jnp.maximum(nu, section.eps**2)
            counted = {"vocab": pieces} if pieces else {}
            count = math.prod(counted.get(names[at], grad.shape[at]) for at in over)
            rms = jnp.sqrt(ratio.sum(over, keepdims=True) / count)
            decay = section.weight_decay if decays else 0.0
            return (update + decay * param) / jnp.maximum(rms, 1.0)

        return jax.tree.map(clipped, updates, grads, nu, params, axes, decays(params)), state

    return optax.GradientTransformation(adam.init, update)
