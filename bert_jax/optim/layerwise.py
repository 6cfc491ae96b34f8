"""Gradient transformations that treat the units of a model differently; see `units`.

`units` is the unit of every parameter, from `unit_of_parameters`; `trains_from` the step from which
each unit trains: int32 [units], from `unfreeze_schedule`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.optim.units import NEVER


def scale_by_unit(factors: np.ndarray, units: Any) -> optax.GradientTransformation:
    """Multiplies every update by its unit's factor, of `factors` float [units]."""
    factors = factors.astype(np.float32)

    def scale(updates: optax.Updates, params: optax.Params | None = None) -> optax.Updates:
        del params
        return jax.tree.map(lambda update, unit: update * factors[unit], updates, units)

    return optax.stateless(scale)


def mask_frozen_updates(trains_from: np.ndarray, units: Any) -> optax.GradientTransformation:
    """Puts zeros in place of the updates of units that do not train at this step.

    A parameter frozen for good gets zeros that depend on nothing, so that the compiler drops what
    would have computed them: below the lowest unit that trains there is no backward pass.

    Returns:
        A transformation that counts steps in an `optax.ScaleByScheduleState` where some unit
        is unfrozen later, and has no state otherwise.
    """

    def keep(updates: optax.Updates, step: jax.typing.ArrayLike) -> optax.Updates:
        def mask(update: jax.Array, unit: np.ndarray) -> jax.Array:
            since = trains_from[unit]
            if (since == 0).all():
                return update
            if (since == NEVER).all():
                return jnp.zeros_like(update)
            return jnp.where(since <= step, update, jnp.zeros_like(update))

        return jax.tree.map(mask, updates, units)

    if not unfreezes_later(trains_from):
        return optax.stateless(lambda updates, params: keep(updates, 0))

    def init(params: optax.Params) -> optax.ScaleByScheduleState:
        del params
        return optax.ScaleByScheduleState(count=jnp.zeros([], jnp.int32))

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        del params
        assert isinstance(state, optax.ScaleByScheduleState)
        count = optax.safe_increment(state.count)
        return keep(updates, state.count), optax.ScaleByScheduleState(count=count)

    return optax.GradientTransformation(init, update)


def scale_by_unfrozen_adam(
    trains_from: np.ndarray, units: Any, *, beta1: float, beta2: float, eps: float
) -> optax.GradientTransformation:
    """Adam whose bias correction counts each unit's steps from the one at which it was unfrozen.

    A unit unfrozen at step 1000 has moments of zero. Corrected by the run's count, as plain
    Adam would, its first step is 2.5 times and its tenth 5.2 times what a fresh Adam takes under
    a constant gradient (the limits are 3.2 and 6.5), which is the instability that bias
    correction is there to prevent (arXiv 2006.05987). From its own count it is a fresh Adam.
    Until a unit trains, its gradients have to be zeros.
    """

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        del params
        assert isinstance(state, optax.ScaleByAdamState)
        mu = jax.tree.map(lambda g, m: beta1 * m + (1 - beta1) * g, updates, state.mu)
        nu = jax.tree.map(lambda g, v: beta2 * v + (1 - beta2) * jnp.square(g), updates, state.nu)
        count = optax.safe_increment(jnp.asarray(state.count))

        def scale(m: jax.Array, v: jax.Array, unit: np.ndarray) -> jax.Array:
            # At least 1, since a unit that is still frozen would divide zero by zero.
            steps = jnp.maximum(count - trains_from[unit], 1)
            return m / (1 - beta1**steps) / (jnp.sqrt(v / (1 - beta2**steps)) + eps)

        scaled = jax.tree.map(scale, mu, nu, units)
        return scaled, optax.ScaleByAdamState(count=count, mu=mu, nu=nu)

    return optax.GradientTransformation(optax.scale_by_adam().init, update)


def unfreezes_later(trains_from: np.ndarray) -> bool:
    """Returns whether some unit starts to train after the first step."""
    return bool(((trains_from > 0) & (trains_from < NEVER)).any())
