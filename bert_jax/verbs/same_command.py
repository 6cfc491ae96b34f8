"""Whether every process of a job runs the same command, with the same libraries."""

from collections.abc import Mapping
from importlib import metadata
from typing import Any, Final

from bert_jax.parallel.mesh import initialise
from bert_jax.parallel.section import MeshSection

# Their versions decide the compiled programs and the rows.
PACKAGES: Final = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def join_same_command(verb: str, mesh: MeshSection | None, arguments: Mapping[str, Any]) -> None:
    """Joins the other processes and compares what each of them was asked to do.

    Without `mesh.distributed.enabled` this does nothing, not even start JAX. `arguments` are nested
    plain JSON: settings by their keys, options by their names. Raises UserError on all processes: a
    process has another verb, other versions or other arguments; the message names the first key.
    """
    if mesh is None or not mesh.distributed.enabled:
        return
    initialise(
        mesh, command=describe_command(verb, {"mesh": mesh.model_dump(mode="json"), **arguments})
    )


def describe_command(verb: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a command and the versions that run it, as plain values to compare."""
    versions = {name: metadata.version(name) for name in PACKAGES}
    return {"verb": verb, "versions": versions, **arguments}
