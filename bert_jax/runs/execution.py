"""How a model is executed where the settings leave it to the devices."""

from collections.abc import Callable
from typing import Final

from jax.sharding import Mesh

from bert_jax.model.config import Architecture, Execution
from bert_jax.model.execution import resolve_execution
from bert_jax.parallel.rules import check_divides

SLOWER: Final = (
    "activations in float32: on a CPU bfloat16 is slower (model.execution.dtype, finetune.dtype)"
)


def execution_on(
    mesh: Mesh,
    execution: Execution,
    *,
    architecture: Architecture,
    longest: int,
    chosen: bool,
    say: Callable[[str], None],
) -> tuple[Execution, Execution]:
    """Returns an execution whose dtype is fast on the devices, and it with nothing left to choose.

    A dtype that the settings name (`chosen`) stays; `say` gets a line if it changes. Raises
    UserError: the mesh does not divide the model, or the devices cannot execute it so.
    """
    check_divides(mesh, "heads", architecture.num_attention_heads, key="mesh.tensor")
    if not chosen and execution.dtype != "float32" and mesh.devices.flat[0].platform == "cpu":
        say(SLOWER)
        execution = execution.model_copy(update={"dtype": "float32"})
    resolved = resolve_execution(execution, architecture=architecture, mesh=mesh, longest=longest)
    return execution, resolved
