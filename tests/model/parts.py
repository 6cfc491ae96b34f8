"""What the model tests share: fresh parameters, and the model put together from them."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.model.pretraining import BertForPretraining
from bert_jax.objectives.bert import BertObjective
from bert_jax.train.state import define_model


def fresh_params(task: BertObjective, *, seed: int = 0) -> dict[str, Any]:
    """A model's first parameters as numpy arrays, drawn by one compiled program."""

    def draw() -> Any:
        return nnx.to_pure_dict(nnx.split(task.build(nnx.Rngs(params=seed)))[1])

    return jax.device_get(jax.jit(draw)())


def model_of(task: BertObjective, params: Any) -> BertForPretraining:
    """The task's model with these parameters."""
    return nnx.merge(define_model(task.build).graphdef, jax.tree.map(jnp.asarray, params))
