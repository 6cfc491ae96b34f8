"""Resolves `auto` and unset settings of an execution for the devices of a mesh."""

from typing import Any, Final, Literal, NamedTuple, get_args

import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.errors import UserError
from bert_jax.kernels import gelu_product
from bert_jax.kernels.attention_tiles import longest_rows
from bert_jax.kernels.cross_entropy_shape import widest
from bert_jax.kernels.norm import MOST_NUMBERS, fits
from bert_jax.model.config import Architecture, Execution, Implementation
from bert_jax.parallel.accelerators import takes_kernels
from bert_jax.parallel.sharding_rules import axis_parts

Part = Literal["attention", "norm", "loss", "ffn"]  # settings of `Execution`

# Maximum number of layers that are unrolled by default. On a TPU, a scan takes 50% more cycles and
# twice the memory for temporaries. On a CPU, a scan is 20% slower, but a deep unrolled model takes
# minutes to compile.
UNROLLED_ON_TPU: Final = 24
UNROLLED: Final = 4


class Choice(NamedTuple):
    """The implementation that a setting resolves to, and the reason."""

    name: Implementation
    why: str


def default_unroll(depth: int, *, on_tpu: bool) -> int:
    """Returns the default of `unroll` for a model with `depth` layers."""
    return depth if depth <= (UNROLLED_ON_TPU if on_tpu else UNROLLED) else 1


def choose(
    part: Part,
    execution: Execution,
    device: Any,
    *,
    architecture: Architecture,
    mesh: Mesh,
    longest: int,
) -> Choice:
    """Resolves one setting: ``("fused", "one kernel on TPU v5 lite")``.

    `device` is a device of the mesh, and `longest` the length of the longest rows in tokens. Raises
    UserError if the setting is `fused` and the kernel cannot run.
    """
    key, asked = f"model.execution.{part}", getattr(execution, part)
    if asked == "xla":
        return Choice("xla", f"set by {key}")
    found, allowed = _obstacle(part, execution, architecture, mesh, longest)
    if found and asked == "fused":
        raise UserError(
            "model.fused_size",
            "found fused with {found}, allowed: {allowed}, or {part}: xla",
            place=key,
            found=found,
            allowed=allowed,
            part=part,
        )
    if found:
        return Choice("xla", f"{found}; the kernel supports {allowed}")
    if takes_kernels(device):
        return Choice("fused", f"one kernel on {device.device_kind}")
    if asked == "auto":
        return Choice("xla", f"no kernel for {device.device_kind}")
    if device.platform == "tpu":
        raise UserError(
            "model.fused_device",
            "found fused on {found}, allowed only on v4, v5e, v5p and v6e. Use xla here.",
            place=key,
            found=device.device_kind,
        )
    # For tests.
    return Choice("fused", f"set by {key}; without a TPU, the slow Pallas interpreter runs it")


def _obstacle(
    part: Part, execution: Execution, architecture: Architecture, mesh: Mesh, longest: int
) -> tuple[str, str]:
    """Returns (unsupported size or setting, what the kernel supports), or empty texts."""
    width, itemsize = architecture.hidden_size, jnp.dtype(execution.dtype).itemsize
    if part == "attention":
        heads = architecture.num_attention_heads
        of_device = heads // axis_parts(mesh, "heads")
        most = longest_rows(heads=of_device, columns=width // heads, itemsize=itemsize)
        if longest > most:
            return f"rows of {longest} tokens", f"up to {most} with this model's heads and dtype"
    elif part == "norm":
        if not fits(width):
            return f"a hidden size of {width}", f"multiples of 128 up to {MOST_NUMBERS}"
    elif part == "loss":
        pieces = architecture.padded_vocab_size // axis_parts(mesh, "vocab")
        if width > (most := widest(pieces=pieces, itemsize=itemsize)):
            return f"a hidden size of {width} in {execution.dtype}", f"up to {most}"
    else:
        inner = architecture.intermediate_size // axis_parts(mesh, "mlp")
        if architecture.hidden_act != "gelu_tanh":
            return f"hidden_act: {architecture.hidden_act}", "gelu_tanh"
        if execution.dtype != "bfloat16":
            return f"dtype: {execution.dtype}", "bfloat16"
        if not gelu_product.fits(inputs=inner, outputs=width):
            return f"an FFN matrix of {width} x {inner} on a device", "multiples of 128"
    return "", ""


def resolve_execution(
    execution: Execution, *, architecture: Architecture, mesh: Mesh, longest: int
) -> Execution:
    """Returns the execution of a train step on a mesh, without `auto` and unset settings.

    `longest` is the length of the longest rows in tokens. Raises UserError as `choose`.
    """
    device = mesh.devices.flat[0]
    chosen: dict[str, Any] = {
        part: choose(
            part, execution, device, architecture=architecture, mesh=mesh, longest=longest
        ).name
        for part in get_args(Part)
    }
    depth, on_tpu = architecture.num_hidden_layers, device.platform == "tpu"
    chosen["unroll"] = execution.unroll or default_unroll(depth, on_tpu=on_tpu)
    return execution.model_copy(update=chosen)
