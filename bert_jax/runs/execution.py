"""How a model is executed where the settings leave it to the devices."""

from collections.abc import Callable
from typing import Final

from jax.sharding import Mesh

from bert_jax.model.config import Execution

SLOWER: Final = (
    "activations in float32: on a CPU bfloat16 is slower (model.execution.dtype, finetune.dtype)"
)


def suited_to(
    execution: Execution, mesh: Mesh, *, chosen: bool, say: Callable[[str], None]
) -> Execution:
    """Returns an execution whose activations have the dtype that is fast on the devices.

    A dtype that the settings name (`chosen`) stays; `say` gets a line if it changes.
    """
    if chosen or execution.dtype == "float32" or mesh.devices.flat[0].platform != "cpu":
        return execution
    say(SLOWER)
    return execution.model_copy(update={"dtype": "float32"})
