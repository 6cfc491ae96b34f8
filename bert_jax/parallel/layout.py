"""How a mesh divides devices and batches, in numbers: known before JAX has opened anything."""

import math
from typing import Final

from bert_jax.errors import UserError
from bert_jax.parallel.section import MeshSection

SLICE: Final = "slice"
DATA: Final = "data"
FSDP: Final = "fsdp"
TENSOR: Final = "tensor"


def mesh_shape(section: MeshSection, device_count: int) -> tuple[int, int, int]:
    """Returns the sizes data (of all slices), fsdp, tensor, with -1 worked out.

    Raises UserError: more than one -1, or a product other than the number of devices.
    """
    sizes = {DATA: section.data, FSDP: section.fsdp, TENSOR: section.tensor}
    if 0 in sizes.values():
        axis = next(name for name, size in sizes.items() if size == 0)
        raise UserError(f"mesh.{axis}: found 0, allowed: a positive number, or -1 for the rest")
    free = [name for name, size in sizes.items() if size == -1]
    if len(free) > 1:
        raise UserError(f"mesh: {' and '.join(free)} are both -1, allowed: at most one")
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if free and device_count % fixed == 0:
        sizes[free[0]] = device_count // fixed
    if math.prod(sizes.values()) != device_count:
        asked = " × ".join(f"{name} {size}" for name, size in sizes.items())
        raise UserError(
            f"mesh: {asked} does not make {device_count}, the number of devices; allowed: axes "
            f"whose product is {device_count} (one of them may be -1)"
        )
    return sizes[DATA], sizes[FSDP], sizes[TENSOR]


def check_slices(section: MeshSection, data: int) -> None:
    """Refuses a number of slices that does not divide the data axis. Raises UserError."""
    if data % section.slices:
        raise UserError(f"mesh.slices: found {section.slices}, which does not divide data = {data}")


def check_batch(key: str, rows: int, *, parts: int, accumulation: int) -> None:
    """Refuses rows that do not divide evenly into parts of the mesh and microbatches.

    `key` names the setting, `parts` is data × fsdp. Raises UserError: with the multiple allowed.
    """
    unit = parts * accumulation
    if rows % unit:
        raise UserError(
            f"{key}: found {rows}, allowed: a multiple of {unit} (data × fsdp = {parts}, "
            f"accumulation {accumulation})"
        )
