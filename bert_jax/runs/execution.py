"""Chooses dtype and kernels for a model on a mesh, if the settings do not."""

from collections.abc import Callable
from typing import Final

from jax.sharding import Mesh

from bert_jax.encoders.kernel_choice import interpreted, resolve_execution
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import Execution
from bert_jax.parallel.sharding_rules import check_divides

SLOWER: Final = (
    "activations in float32: bfloat16 is slower on a CPU (model.execution.dtype, finetune.dtype)"
)


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
