"""A model on its way in or out: what it is, what it can, and its numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

from flax import nnx

from bert_jax.model.bert import Bert
from bert_jax.model.config import Architecture, Execution, HeadsSection
from bert_jax.text import Tokenizer


class Pretrained(NamedTuple):
    """A checkpoint in our own terms, whatever format it came from."""

    architecture: Architecture
    heads: HeadsSection
    params: dict[str, Any]  # nested dict of float32 arrays, stacked and padded
    tokenizer: Tokenizer
    ignored: dict[str, str]  # tensors left out → why


def model_shapes(architecture: Architecture, heads: HeadsSection) -> dict[str, Any]:
    """Returns the parameters' shapes and dtypes as a nested dict, allocating nothing."""
    execution = Execution(dtype="float32")
    model = nnx.eval_shape(
        lambda: Bert(
            architecture=architecture, execution=execution, heads=heads, rngs=nnx.Rngs(params=0)
        )
    )
    return nnx.to_pure_dict(nnx.split(model)[1])
