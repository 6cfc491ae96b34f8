"""A checkpoint in our own terms: every format is read into it and written from it."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from bert_jax.interop.mapping import Params
from bert_jax.model.bert import bert_builder
from bert_jax.model.config import Architecture, Execution, HeadsSection
from bert_jax.optim.optimizer import MomentsState
from bert_jax.text import Tokenizer
from bert_jax.train.state import define_model


class Pretrained(NamedTuple):
    """A model, its numbers and its tokenizer."""

    architecture: Architecture
    heads: HeadsSection
    params: Params  # nested dict of float32 arrays, stacked and padded
    tokenizer: Tokenizer
    moments: MomentsState | None = None  # Adam's, laid out like `params`
    step: int | None = None  # optimizer steps done; None: unknown
    files: tuple[Path, ...] = ()  # it was read from, without the tokenizer's
    ignored: Mapping[str, str] = MappingProxyType({})  # tensor that was left out → why


def model_shapes(architecture: Architecture, heads: HeadsSection) -> Params:
    """Returns the parameters' shapes and dtypes as a nested dict, allocating nothing."""
    return define_model(bert_builder(architecture, Execution(), heads)).params
