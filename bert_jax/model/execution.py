"""What `auto` and settings left out come to, on the devices of a mesh."""

from typing import Any, Final, NamedTuple

from jax.sharding import Mesh

from bert_jax.errors import UserError
from bert_jax.kernels.attention import LONGEST
from bert_jax.model.config import Architecture, AttentionName, Execution
from bert_jax.parallel.accelerators import takes_kernels

# Layers. On a TPU a scan of them costs half as many cycles again and twice the temporaries; on a
# CPU a fifth of a step, and unrolled a deep model takes minutes to compile.
UNROLLED_ON_TPU: Final = 24
UNROLLED: Final = 4


def default_unroll(depth: int, *, on_tpu: bool) -> int:
    """Returns how many layers of a model are unrolled where no setting says."""
    return depth if depth <= (UNROLLED_ON_TPU if on_tpu else UNROLLED) else 1


class AttentionChoice(NamedTuple):
    """Which attention a train step computes, and why."""

    name: AttentionName
    why: str


def choose_attention(asked: AttentionName, device: Any, *, longest: int) -> AttentionChoice:
    """Returns what a setting comes to: ``("fused", "one kernel on TPU v5 lite")``.

    `device`: one of those that the step will run on; `longest`: tokens of the longest rows.

    Raises:
        UserError: `fused` where its kernel cannot run.
    """
    key = "model.execution.attention"
    if asked == "xla":
        return AttentionChoice("xla", f"{key} says so")
    if longest > LONGEST:
        if asked == "fused":
            raise UserError(
                f"{key}: found fused with rows of {longest} tokens, allowed: up to {LONGEST}, or "
                f"attention: xla"
            )
        return AttentionChoice("xla", f"rows of {longest} tokens; fused takes up to {LONGEST}")
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


def resolve_execution(
    execution: Execution, *, architecture: Architecture, mesh: Mesh, longest: int
) -> Execution:
    """Returns how a train step is executed, with nothing left to choose.

    `mesh`: that the step will run on; `longest`: tokens of the longest rows.

    Raises:
        UserError: `fused` where its kernel cannot run.
    """
    device = mesh.devices.flat[0]
    attention = choose_attention(execution.attention, device, longest=longest).name
    depth = architecture.num_hidden_layers
    unroll = execution.unroll or default_unroll(depth, on_tpu=device.platform == "tpu")
    return execution.model_copy(update={"attention": attention, "unroll": unroll})
