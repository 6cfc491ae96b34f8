"""A model on its way in or out: what it is, what it can, and its numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.model.bert import bert_builder
from bert_jax.model.config import Architecture, Execution, HeadsSection
from bert_jax.text import Tokenizer
from bert_jax.train.state import define_model


class Pretrained(NamedTuple):
    """A checkpoint in our own terms, whatever format it came from."""

    architecture: Architecture
    heads: HeadsSection
    params: dict[str, Any]  # nested dict of float32 arrays, stacked and padded
    tokenizer: Tokenizer
    ignored: dict[str, str]  # tensors left out → why
    files: tuple[Path, ...]  # what it was read from


def model_shapes(architecture: Architecture, heads: HeadsSection) -> dict[str, Any]:
    """Returns the parameters' shapes and dtypes as a nested dict, allocating nothing."""
    return define_model(bert_builder(architecture, Execution(), heads)).params
