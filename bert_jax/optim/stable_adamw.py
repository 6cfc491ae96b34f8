"""StableAdamW: AdamW whose learning rate falls for a parameter with unusually large gradients."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax.optim.sections import AdamSection
from bert_jax.parallel.sharding_rules import LogicalAxes


def stable_adamw(section: AdamSection, axes: Any, *, decays: Any) -> optax.GradientTransformation:
    """Returns AdamW with update clipping: ``(m̂ / (√v̂ + eps) + decay · parameter) / max(1, RMS)``.

    RMS is the root mean square of ``gradient / max(√v̂, eps)`` over a parameter, or over each layer
    of a stacked parameter. It is far above 1 if the second moment lags behind the gradients. `axes`
    are the logical axes of the parameters, and `decays(params)` is True for parameters with weight
    decay.

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
            rms = jnp.sqrt(ratio.mean(over, keepdims=True))
            decay = section.weight_decay if decays else 0.0
            return (update + decay * param) / jnp.maximum(rms, 1.0)

        return jax.tree.map(clipped, updates, grads, nu, params, axes, decays(params)), state

    return optax.GradientTransformation(adam.init, update)
