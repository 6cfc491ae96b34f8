"""Estimates the memory of a train step from shapes, in seconds and without compiling it."""

import math
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from bert_jax.planning.compilation.lowering import device_bytes, open_step
from bert_jax.planning.compilation.step import Memory
from bert_jax.planning.request import CompileRequest
from bert_jax.task import Rngs
from bert_jax.train.frozen import bind


def estimate_memory(request: CompileRequest, mesh: Mesh) -> Memory:
    """Returns the bytes of one device that a train step needs at least.

    Activations are the arrays that the backward pass of a microbatch reads. On a CPU, BERT-Base's
    step needs 7% more in total, because of further temporaries; with `remat`, up to three times as
    many. Raises UserError if mesh, batch and model do not fit together.
    """
    step = open_step(request, mesh)
    task, model = step.spec.task, step.spec.model
    rows = step.rows // request.train.phases[request.phase].accumulation

    def kept(params: Any, frozen: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            key = jax.random.key(0, impl="threefry2x32")
            return task.loss(
                nnx.merge(model.graphdef, params),
                batch,
                divisors=task.divisors(batch),
                rngs=Rngs(key, key),
                frozen=bind(task, frozen),
            )

        _, backward, _ = jax.vjp(loss, params, has_aux=True)
        return backward

    batch = {
        name: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype)
        for name, leaf in step.batch.items()
    }
    with jax.set_mesh(mesh):
        residuals = jax.tree.leaves(jax.eval_shape(kept, model.params, step.frozen, batch))
    own = {leaf.shape for leaf in jax.tree.leaves([model.params, step.frozen])}
    activations = sum(_bytes(leaf) for leaf in residuals if leaf.shape not in own) // mesh.size
    parameters = device_bytes([step.state.params, step.frozen])
    optimizer = device_bytes(step.state._replace(params={}))
    temporaries = activations + device_bytes(step.state.params)  # and gradients
    fed = device_bytes(step.batch)
    return Memory(
        parameters=parameters,
        optimizer=optimizer,
        batch=fed,
        temporaries=temporaries,
        peak=parameters + optimizer + fed + temporaries,
    )


def _bytes(leaf: Any) -> int:
    size = leaf.dtype.itemsize if isinstance(leaf.dtype, np.dtype) else 8  # a random key
    return math.prod(leaf.shape) * size
