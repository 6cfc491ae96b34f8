"""What `auto` and settings left out come to, on the devices of a mesh."""

from __future__ import annotations

from typing import Final

from jax.sharding import Mesh

from bert_jax.errors import UserError
from bert_jax.kernels.attention import LONGEST
from bert_jax.model.config import Architecture, AttentionName, Execution

# Their matrix units take bfloat16 from XLA alone: the kernels' compiler refuses it.
WITHOUT_KERNELS: Final = ("TPU v2", "TPU v3")
# Layers. On a TPU a scan of them costs half as many cycles again and twice the temporaries; on a
# CPU a fifth of a step, and unrolled a deep model takes minutes to compile.
UNROLLED_ON_TPU: Final = 24
UNROLLED: Final = 4


def default_unroll(depth: int, *, on_tpu: bool) -> int:
    """Returns how many layers of a model are unrolled where no setting says."""
    return depth if depth <= (UNROLLED_ON_TPU if on_tpu else UNROLLED) else 1


def resolve_execution(
    execution: Execution, *, architecture: Architecture, mesh: Mesh, longest: int
) -> Execution:
    """Returns how a train step is executed, with nothing left to choose.

    Args:
        execution: as configured.
        architecture: of the model.
        mesh: that the step will run on.
        longest: tokens of the longest rows.

    Raises:
        UserError: `fused` where its kernel cannot run.
    """
    device = mesh.devices.flat[0]
    on_tpu = device.platform == "tpu"
    kernels = on_tpu and device.device_kind not in WITHOUT_KERNELS
    attention: AttentionName = execution.attention
    if attention == "auto":
        attention = "fused" if kernels and longest <= LONGEST else "xla"
    elif attention == "fused" and longest > LONGEST:
        raise UserError(
            f"model.execution.attention: found fused with rows of {longest} tokens, allowed: up to "
            f"{LONGEST}, or attention: xla"
        )
    elif attention == "fused" and on_tpu and not kernels:
        raise UserError(
            f"model.execution.attention: found fused on {device.device_kind}, allowed: from v4 on; "
            f"here xla"
        )
    depth = architecture.num_hidden_layers
    unroll = execution.unroll or default_unroll(depth, on_tpu=on_tpu)
    return execution.model_copy(update={"attention": attention, "unroll": unroll})
