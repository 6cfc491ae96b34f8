"""Compares the commands and library versions of all processes of a job."""

import contextlib
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any, Final

from bert_jax.errors import UserError
from bert_jax.parallel.channel import current_channel
from bert_jax.parallel.mesh import initialise
from bert_jax.parallel.processes import join
from bert_jax.parallel.section import MeshSection

# Packages whose versions affect compiled programs or batches.
PACKAGES: Final = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def join_same_command(verb: str, mesh: MeshSection | None, arguments: Mapping[str, Any]) -> None:
    """Joins the other processes and compares their commands.

    Without `mesh.distributed.enabled`, returns at once and does not start JAX. `arguments` are
    settings and options by name, as nested JSON values. If verb, versions or arguments differ,
    raises UserError on all processes; the message names the first key that differs.
    """
    if mesh is None or not mesh.distributed.enabled:
        return
    initialise(
        mesh, command=describe_command(verb, {"mesh": mesh.model_dump(mode="json"), **arguments})
    )


def several_processes(mesh: MeshSection | None) -> bool:
    """Returns whether this process joins others, or has joined them."""
    return current_channel() is not None or (mesh is not None and mesh.distributed.enabled)


@contextlib.contextmanager
def errors_for_all(mesh: MeshSection | None) -> Iterator[None]:
    """Raises a UserError of the block in all processes if they have not joined yet.

    The other processes would wait for this one.
    """
    try:
        yield
    except UserError as error:
        if mesh is not None and mesh.distributed.enabled and current_channel() is None:
            join(mesh.distributed, error=error)
        raise


def describe_command(verb: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a command and the versions of `PACKAGES`, as JSON values to compare."""
    versions = {name: metadata.version(name) for name in PACKAGES}
    return {"verb": verb, "versions": versions, **arguments}
