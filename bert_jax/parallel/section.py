"""Settings of the mesh, and how they divide devices and batches; without JAX."""

import math
from typing import Final, Literal

import pydantic

from bert_jax.errors import UserError
from bert_jax.section import PathText, Section

SLICE: Final = "slice"
DATA: Final = "data"
FSDP: Final = "fsdp"
TENSOR: Final = "tensor"

LAST_PORT: Final = 65_535

Platform = Literal["auto", "cpu", "gpu", "tpu"]


class DistributedSection(Section):
    """How several processes find each other. On a Cloud TPU everything is found by itself."""

    enabled: bool = False
    """True on every host of a job of several processes."""
    coordinator_address: str | None = None
    """HOST or HOST:PORT of the first process. Default: found on Cloud TPU, Slurm, Kubernetes and
    Open MPI."""
    coordinator_port: int = pydantic.Field(default=8482, ge=1, le=LAST_PORT)
    """Where the address names none."""
    process_count: int | None = pydantic.Field(default=None, ge=1)
    """None: found likewise."""
    process_index: int | None = pydantic.Field(default=None, ge=0)
    """Of this process, from 0. None: found likewise."""
    timeout_seconds: int = pydantic.Field(default=300, ge=1)
    """For all processes to come; then the missing ones are named."""
    silence_seconds: float = pydantic.Field(default=15.0, ge=3.0)
    """After so long without a sign of life a process is taken for dead."""


class CompilationCacheSection(Section):
    """Where compiled programs are kept from one start to the next.

    Where ``JAX_COMPILATION_CACHE_DIR`` names a directory, that is the default. A local disk
    keeps 10 GB: the programs used longest ago make room for new ones. A bucket keeps all.
    """

    directory: PathText | None = None
    """Local or gs://. null: ``~/.cache/bert_jax/xla``."""


class MeshSection(Section):
    """Devices and how a run is split over them. One axis may be -1: all devices left over."""

    platform: Platform = "auto"
    """`auto` takes what JAX finds; with a name the run refuses to start on anything else."""
    data: int = pydantic.Field(default=-1, ge=-1)
    """Parts of a batch. Between steps parameters and moments are split along this axis too (ZeRO);
    a step gathers parameters: layer by layer where layers are unrolled, else before its loops."""
    fsdp: int = pydantic.Field(default=1, ge=-1)
    """Parts of a batch; parameters are gathered layer by layer within loops too: over microbatches
    and over layers that are not unrolled."""
    tensor: int = pydantic.Field(default=1, ge=-1)
    """Parts of heads, FFN columns and vocabulary."""
    slices: int = pydantic.Field(default=1, ge=1)
    """Slices of TPUs that split the batch between them, over the data-centre network."""
    simulated_devices: int | None = pydantic.Field(default=None, ge=1, le=512)
    """CPU devices to make of one CPU, for trying a layout."""
    distributed: DistributedSection = DistributedSection()
    """How several processes meet."""
    compilation_cache: CompilationCacheSection | None = CompilationCacheSection()
    """Programs compiled once are read at the next start. null: they are not kept."""


def mesh_shape(section: MeshSection, device_count: int) -> tuple[int, int, int]:
    """Returns the sizes data (of all slices), fsdp, tensor, with -1 worked out.

    Raises UserError: more than one -1, or a product other than the number of devices.
    """
    sizes = {DATA: section.data, FSDP: section.fsdp, TENSOR: section.tensor}
    if 0 in sizes.values():
        axis = next(name for name, size in sizes.items() if size == 0)
        raise UserError(
            "mesh.axis_zero",
            "found 0, allowed: a positive number, or -1 for all remaining devices",
            place=f"mesh.{axis}",
        )
    free = [name for name, size in sizes.items() if size == -1]
    if len(free) > 1:
        raise UserError(
            "mesh.two_free_axes",
            "found -1 for {found}, allowed: one axis with -1",
            place="mesh",
            found=free,
        )
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if free and device_count % fixed == 0:
        sizes[free[0]] = device_count // fixed
    if math.prod(sizes.values()) != device_count:
        raise UserError(
            "mesh.size",
            "found data {data} × fsdp {fsdp} × tensor {tensor}, allowed: a product of {devices}, "
            "the number of devices. One axis may be -1.",
            place="mesh",
            **sizes,
            devices=device_count,
        )
    return sizes[DATA], sizes[FSDP], sizes[TENSOR]


def check_slices(section: MeshSection, data: int) -> None:
    """Refuses a number of slices that does not divide the data axis. Raises UserError."""
    if data % section.slices:
        raise UserError(
            "mesh.slices",
            "found {found}, allowed: a divisor of data = {data}",
            place="mesh.slices",
            found=section.slices,
            data=data,
        )


def check_batch(key: str, rows: int, *, parts: int, accumulation: int) -> None:
    """Refuses rows that do not divide evenly into parts of the mesh and microbatches.

    `key` names the setting, `parts` is data × fsdp. Raises UserError: with the multiple allowed.
    """
    unit = parts * accumulation
    if rows % unit:
        raise UserError(
            "batch.not_a_multiple",
            "found {found}, allowed: a multiple of {unit} (data × fsdp = {parts}, accumulation "
            "{accumulation})",
            place=key,
            found=rows,
            unit=unit,
            parts=parts,
            accumulation=accumulation,
        )
