"""The sizes and settings that the kernels of all encoders support."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp

from bert_jax.kernels.cross_entropy_shape import widest
from bert_jax.kernels.norm import MOST_NUMBERS, fits
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.cudnn_attention import WIDEST_HEAD
from bert_jax.model.section import Execution

Part = Literal["attention", "norm", "loss", "ffn"]  # settings of `Execution`


class Limit(NamedTuple):
    """Why a kernel cannot run."""

    found: str  # unsupported size or setting: ``a hidden size of 100``
    allowed: str  # what the kernel supports: ``multiples of 128``


class KernelUse(NamedTuple):
    """The use of a kernel by a model.

    Attributes:
        part: setting of `Execution`.
        execution: settings.
        architecture: sizes of the model.
        parts: number of devices over which the logical axes heads, mlp and vocab are split.
        longest: length of the longest rows in tokens.
        vmem: bytes of VMEM of a core, or None if the device is not known or has none.
    """

    part: Part
    execution: Execution
    architecture: Any
    parts: Mapping[str, int]
    longest: int
    vmem: int | None


def cudnn_limit(architecture: EncoderArchitecture, execution: Execution) -> Limit | None:
    """Returns the limit of cuDNN's attention, or None if it can run."""
    if architecture.relative_scores:
        return Limit("scores that depend on distances", "other encoders")
    setting = architecture.attention_dropout_setting
    if rate := getattr(architecture, setting):
        return Limit(f"{setting}: {rate}", "0")
    if execution.dtype != "bfloat16":
        return Limit(f"dtype: {execution.dtype}", "bfloat16")
    columns = architecture.head_dim
    if columns % 8 == 0 and columns <= WIDEST_HEAD:
        return None
    return Limit(f"heads of {columns} columns", f"multiples of 8 up to {WIDEST_HEAD}")


def norm_limit(architecture: EncoderArchitecture) -> Limit | None:
    """Returns the limit of the LayerNorm kernel, or None if it can run."""
    width = architecture.hidden_size
    if fits(width):
        return None
    return Limit(f"a hidden size of {width}", f"multiples of 128 up to {MOST_NUMBERS}")


def loss_limit(
    architecture: EncoderArchitecture, execution: Execution, *, vocab_parts: int
) -> Limit | None:
    """Returns the limit of the MLM loss kernel, or None if it can run."""
    width, itemsize = architecture.embedding_width, jnp.dtype(execution.dtype).itemsize
    most = widest(pieces=architecture.padded_vocab_size // vocab_parts, itemsize=itemsize)
    if width <= most:
        return None
    return Limit(f"a hidden size of {width} in {execution.dtype}", f"up to {most}")
