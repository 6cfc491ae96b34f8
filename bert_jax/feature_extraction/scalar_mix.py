"""A scalar mix of layers, learned together with a linear classifier."""

from __future__ import annotations

import functools
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import optax

STEPS: Final = 100


def learn_mix(states: np.ndarray, labels: np.ndarray, *, classes: int) -> np.ndarray:
    """Returns the weight of each state, float32 [states], positive and summing to 1.

    The weights are the softmax of one parameter per state, learned jointly with a softmax
    classifier on the mixed features by full-batch L-BFGS. The classifier's L2 penalty is that of
    scikit-learn's logistic regression at C = 1. Source: Peters et al., arXiv 1802.05365,
    equation 1; a linear classifier absorbs its factor γ.

    Args:
        states: float32 [texts, states, D].
        labels: int [texts], 0 to classes − 1.
        classes: number of labels.
    """
    return np.asarray(_learn(jnp.asarray(states), jnp.asarray(labels), classes=classes))


@functools.partial(jax.jit, static_argnames="classes")
def _learn(x_NSD: jax.Array, y_N: jax.Array, *, classes: int) -> jax.Array:
    """Compiles once for folds of one size."""
    count, depth, width = x_NSD.shape

    def loss(params: dict[str, jax.Array]) -> jax.Array:
        mixed_ND = jnp.einsum("s,nsd->nd", jax.nn.softmax(params["mix"]), x_NSD)
        logits = mixed_ND @ params["kernel"] + params["bias"]
        nll = optax.softmax_cross_entropy_with_integer_labels(logits, y_N).mean()
        return nll + jnp.square(params["kernel"]).sum() / (2 * count)

    optimizer = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(loss)

    def step(_: int, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        params, state = carry
        value, grad = value_and_grad(params, state=state)
        updates, state = optimizer.update(
            grad, state, params, value=value, grad=grad, value_fn=loss
        )
        return optax.apply_updates(params, updates), state

    start = {
        "mix": jnp.zeros(depth),
        "kernel": jnp.zeros((width, classes)),
        "bias": jnp.zeros(classes),
    }
    learned, _ = jax.lax.fori_loop(0, STEPS, step, (start, optimizer.init(start)))
    return jax.nn.softmax(learned["mix"])
