"""Chooses dtype and kernels of a model for the devices of a mesh, if the settings do not."""

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple, get_args

from jax.sharding import Mesh

from bert_jax.encoders.build import model_type
from bert_jax.errors import UserError
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.kernel_limits import KernelUse, Limit, Part, cudnn_limit
from bert_jax.model.layer_stack import default_unroll
from bert_jax.model.section import AttentionImplementation, Execution
from bert_jax.parallel.accelerators import takes_cudnn_attention, takes_kernels, vmem_bytes
from bert_jax.parallel.sharding_rules import axis_parts, batch_parts, check_divides

SLOWER: Final = (
    "activations in float32: bfloat16 is slower on a CPU (model.execution.dtype, finetune.dtype)"
)


class Choice(NamedTuple):
    """The implementation that a setting resolves to, and the reason."""

    name: AttentionImplementation
    why: str


def choose(
    part: Part,
    execution: Execution,
    device: Any,
    *,
    architecture: EncoderArchitecture,
    mesh: Mesh,
    longest: int,
) -> Choice:
    """Resolves one setting: ``("fused", "one kernel on TPU v5 lite")``.

    `device` is a device of the mesh, and `longest` the length of the longest rows in tokens. Raises
    UserError if the setting is `fused` or `cudnn` and the kernel cannot run.
    """
    key, asked = f"model.execution.{part}", getattr(execution, part)
    if asked == "xla":
        return Choice("xla", f"set by {key}")
    cudnn = part == "attention" and takes_cudnn_attention(device)
    if asked == "cudnn" or (asked == "auto" and cudnn):
        return _choose_cudnn(asked, device, cudnn_limit(architecture, execution))
    parts = {axis: axis_parts(mesh, axis) for axis in ("heads", "mlp", "vocab")}
    vmem = vmem_bytes(device)
    use = KernelUse(part, execution, architecture, parts, longest, vmem)
    limit = model_type(architecture).limit(use)
    if limit is not None and asked == "fused":
        raise _unsupported(part, asked, limit)
    if limit is not None:
        return Choice("xla", f"{limit.found}; the kernel supports {limit.allowed}")
    if takes_kernels(device):
        return Choice("fused", f"one kernel on {device.device_kind}")
    if asked == "auto":
        return Choice("xla", f"no kernel for {device.device_kind}")
    if device.platform == "tpu":
        found, allowed = f"fused on {device.device_kind}", "v4, v5e, v5p and v6e, or xla"
        raise UserError.wrong("model.fused_device", found, allowed, place=key)
    # For tests.
    return Choice("fused", f"set by {key}; without a TPU, the slow Pallas interpreter runs it")


def _choose_cudnn(asked: str, device: Any, limit: Limit | None) -> Choice:
    """Resolves `attention` where it is `cudnn`, or `auto` on a GPU with cuDNN's attention."""
    if limit is not None and asked == "cudnn":
        raise _unsupported("attention", asked, limit)
    if limit is not None:
        return Choice("xla", f"{limit.found}; cuDNN supports {limit.allowed}")
    if takes_cudnn_attention(device):
        return Choice("cudnn", f"cuDNN's kernel on {device.device_kind}")
    found, allowed = f"cudnn on {device.device_kind}", "an NVIDIA GPU from Ampere on, or auto"
    raise UserError.wrong("model.cudnn_device", found, allowed, place="model.execution.attention")


def _unsupported(part: Part, asked: str, limit: Limit) -> UserError:
    found, allowed = f"{asked} with {limit.found}", f"{limit.allowed}, or {part}: xla"
    return UserError.wrong("model.kernel_limit", found, allowed, place=f"model.execution.{part}")


def second_execution(
    execution: Execution, architecture: EncoderArchitecture, *, first: EncoderArchitecture
) -> Execution:
    """Returns a resolved execution for a second model: `xla` where its kernel cannot run.

    The row length and the mesh are not known here. A kernel must support the longest rows, on every
    mesh on which the kernel of the model `first`, for which `execution` was resolved, can run.
    """
    longest = architecture.max_position_embeddings
    heads = math.gcd(first.key_heads, architecture.key_heads)
    meshes: list[dict[str, int]] = [
        dict.fromkeys(("heads", "mlp", "vocab"), parts)
        for parts in range(1, heads + 1)
        if heads % parts == 0
    ]

    def runs(part: Part) -> bool:
        if getattr(execution, part) == "cudnn":
            return cudnn_limit(architecture, execution) is None

        def limit(of: EncoderArchitecture, mesh: dict[str, int], longest: int) -> Limit | None:
            return model_type(of).limit(KernelUse(part, execution, of, mesh, longest, None))

        used = [each for each in meshes if limit(first, each, 1) is None]
        return not any(limit(architecture, each, longest) for each in used)

    changes = {part: "xla" for part in get_args(Part) if not runs(part)}
    return execution.model_copy(update=changes)


def interpreted(execution: Execution, device: Any) -> str | None:
    """Returns a warning if a resolved execution has kernels that no TPU runs, otherwise None."""
    parts = [part for part in get_args(Part) if getattr(execution, part) == "fused"]
    if not parts or device.platform == "tpu":
        return None
    keys = ", ".join(f"model.execution.{part}" for part in parts)
    return (
        f"{keys}: fused without a TPU: the Pallas interpreter runs these kernels, which is for "
        "tests and many times slower. Use auto."
    )


def resolve_execution(
    execution: Execution, *, architecture: EncoderArchitecture, mesh: Mesh, longest: int
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
    if execution.gradient_dtype == "auto":
        halves = on_tpu and execution.dtype == "bfloat16" and batch_parts(mesh) > 1
        chosen["gradient_dtype"] = "bfloat16" if halves else "float32"
    chosen["unroll"] = execution.unroll or default_unroll(depth, on_tpu=on_tpu)
    return execution.model_copy(update=chosen)


def execution_on(
    mesh: Mesh,
    execution: Execution,
    *,
    architecture: EncoderArchitecture,
    longest: int,
    chosen: bool,
    say: Callable[[str], None],
) -> tuple[Execution, Execution]:
    """Returns the execution section with a fast dtype, and the same section with all kernels set.

    Args:
        mesh: mesh of the run.
        execution: settings.
        architecture: architecture of the model.
        longest: maximum row length in tokens.
        chosen: whether the settings name the dtype. If so, it does not change.
        say: prints a message if the dtype changes, or if an interpreter runs the kernels.

    Raises:
        UserError: the mesh does not divide the attention heads, or the devices cannot execute the
            model.
    """
    check_divides(mesh, "heads", architecture.key_heads, key="mesh.tensor")
    if not chosen and execution.dtype != "float32" and mesh.devices.flat[0].platform == "cpu":
        say(SLOWER)
        execution = execution.model_copy(update={"dtype": "float32"})
    resolved = resolve_execution(execution, architecture=architecture, mesh=mesh, longest=longest)
    if (warning := interpreted(resolved, mesh.devices.flat[0])) is not None:
        say(warning)
    return execution, resolved
