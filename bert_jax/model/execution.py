"""What `auto` and settings left out come to, on the devices of a mesh."""

from typing import Any, Final, NamedTuple

import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.errors import UserError
from bert_jax.kernels import gelu_product
from bert_jax.kernels.attention_shape import longest_rows
from bert_jax.kernels.cross_entropy_shape import widest
from bert_jax.kernels.norm_shape import MOST_NUMBERS, fits
from bert_jax.model.config import Architecture, Execution, Implementation
from bert_jax.parallel.accelerators import takes_kernels
from bert_jax.parallel.rules import axis_parts

# Layers. On a TPU a scan of them costs half as many cycles again and twice the temporaries; on a
# CPU a fifth of a step, and unrolled a deep model takes minutes to compile.
UNROLLED_ON_TPU: Final = 24
UNROLLED: Final = 4


def default_unroll(depth: int, *, on_tpu: bool) -> int:
    """Returns how many layers of a model are unrolled where no setting says."""
    return depth if depth <= (UNROLLED_ON_TPU if on_tpu else UNROLLED) else 1


class AttentionChoice(NamedTuple):
    """Which attention a train step computes, and why."""

    name: Implementation
    why: str


def longest_fused(execution: Execution, *, architecture: Architecture, mesh: Mesh) -> int:
    """Returns the tokens of the longest rows that `fused` takes of a model on a mesh."""
    heads = architecture.num_attention_heads
    return longest_rows(
        heads=heads // axis_parts(mesh, "heads"),
        columns=architecture.hidden_size // heads,
        itemsize=jnp.dtype(execution.dtype).itemsize,
    )


def choose_attention(
    asked: Implementation, device: Any, *, longest: int, most: int
) -> AttentionChoice:
    """Returns what a setting comes to: ``("fused", "one kernel on TPU v5 lite")``.

    `device`: one of those that the step will run on; `longest`: tokens of the longest rows;
    `most`: those of `longest_fused`.

    Raises:
        UserError: `fused` where its kernel cannot run.
    """
    key = "model.execution.attention"
    if asked == "xla":
        return AttentionChoice("xla", f"{key} says so")
    if longest > most:
        if asked == "fused":
            raise UserError(
                f"{key}: found fused with rows of {longest} tokens, allowed: up to {most} with "
                f"this model's heads and dtype, or attention: xla"
            )
        why = (
            f"rows of {longest} tokens; fused takes up to {most} with this model's heads and dtype"
        )
        return AttentionChoice("xla", why)
    if takes_kernels(device):
        return AttentionChoice("fused", f"one kernel on {device.device_kind}")
    if asked == "fused":
        # Elsewhere it is interpreted, slowly: for tests.
        if device.platform == "tpu":
            raise UserError(
                f"{key}: found fused on {device.device_kind}, allowed: v4, v5e, v5p, v6e; here xla"
            )
        return AttentionChoice("fused", f"{key} says so; interpreted, slowly: there is no TPU")
    return AttentionChoice("xla", f"no kernel for {device.device_kind}")


def choose_norm(asked: Implementation, device: Any, *, width: int) -> Implementation:
    """Returns what LayerNorm's setting comes to.

    `device`: one of those that the step will run on; `width`: the model's hidden size.

    Raises:
        UserError: `fused` where its kernels cannot run.
    """
    obstacle = None
    if not fits(width):
        allowed = f"multiples of 128 up to {MOST_NUMBERS}"
        obstacle = f"a hidden size of {width}, allowed: {allowed}"
    return _choose(asked, device, key="norm", obstacle=obstacle)


def choose_ffn(
    execution: Execution, device: Any, *, architecture: Architecture, mesh: Mesh
) -> Implementation:
    """Returns what the FFN's setting comes to, on a mesh of devices like `device`.

    Raises:
        UserError: `fused` where its kernel cannot run.
    """
    width = architecture.hidden_size
    inner = architecture.intermediate_size // axis_parts(mesh, "mlp")
    obstacle = None
    if architecture.hidden_act != "gelu_tanh":
        obstacle = f"hidden_act: {architecture.hidden_act}, allowed: gelu_tanh"
    elif execution.dtype != "bfloat16":
        obstacle = f"dtype: {execution.dtype}, allowed: bfloat16"
    elif not gelu_product.fits(inputs=inner, outputs=width):
        obstacle = f"{width} x {inner} numbers on a device, allowed: multiples of 128"
    return _choose(execution.ffn, device, key="ffn", obstacle=obstacle)


def choose_loss(
    execution: Execution, device: Any, *, architecture: Architecture, mesh: Mesh
) -> Implementation:
    """Returns what the loss's setting comes to, on a mesh of devices like `device`.

    Raises:
        UserError: `fused` where its kernels cannot run.
    """
    width = architecture.hidden_size
    most = widest(
        pieces=architecture.padded_vocab_size // axis_parts(mesh, "vocab"),
        itemsize=jnp.dtype(execution.dtype).itemsize,
    )
    obstacle = None
    if width > most:
        obstacle = f"a hidden size of {width} in {execution.dtype}, allowed: up to {most}"
    return _choose(execution.loss, device, key="loss", obstacle=obstacle)


def _choose(
    asked: Implementation, device: Any, *, key: str, obstacle: str | None
) -> Implementation:
    """Returns `fused` where our kernels run on a device and the model has no `obstacle`."""
    if asked == "auto":
        return "fused" if takes_kernels(device) and obstacle is None else "xla"
    if asked == "fused" and obstacle is not None:
        raise UserError(f"model.execution.{key}: found fused with {obstacle}, or {key}: xla")
    # Elsewhere it is interpreted, slowly: for tests.
    if asked == "fused" and device.platform == "tpu" and not takes_kernels(device):
        raise UserError(
            f"model.execution.{key}: found fused on {device.device_kind}, allowed: v4, v5e, v5p, "
            f"v6e; here xla"
        )
    return asked


def resolve_execution(
    execution: Execution, *, architecture: Architecture, mesh: Mesh, longest: int
) -> Execution:
    """Returns how a train step is executed, with nothing left to choose.

    `mesh`: that the step will run on; `longest`: tokens of the longest rows.

    Raises:
        UserError: `fused` where its kernel cannot run.
    """
    device = mesh.devices.flat[0]
    most = longest_fused(execution, architecture=architecture, mesh=mesh)
    attention = choose_attention(execution.attention, device, longest=longest, most=most).name
    norm = choose_norm(execution.norm, device, width=architecture.hidden_size)
    loss = choose_loss(execution, device, architecture=architecture, mesh=mesh)
    ffn = choose_ffn(execution, device, architecture=architecture, mesh=mesh)
    depth = architecture.num_hidden_layers
    unroll = execution.unroll or default_unroll(depth, on_tpu=device.platform == "tpu")
    chosen = {"attention": attention, "norm": norm, "loss": loss, "ffn": ffn, "unroll": unroll}
    return execution.model_copy(update=chosen)
