"""Settings of the mesh and their checks. Does not import JAX."""

import math
from typing import Final, Literal

import pydantic

from bert_jax.errors import UserError, commas
from bert_jax.section import PathText, Section

COPY: Final = "copy"
DATA: Final = "data"
FSDP: Final = "fsdp"
TENSOR: Final = "tensor"

LAST_PORT: Final = 65_535
DEFAULT_PORT: Final = 8482
"""JAX's own default on Cloud TPU since 0.8.1."""
CLOUD_TPU_PORT: Final = 8476
"""JAX's default before 0.8.1. The firewall rule that Google creates for a v6e slice opens it, but
not 8482 (jax#35905). libtpu listens on other ports (8471 and 8431)."""

Platform = Literal["auto", "cpu", "gpu", "tpu"]


class DistributedSection(Section):
    """Addresses and time limits of several processes. Cloud TPU needs only `enabled`."""

    enabled: bool = False
    """Whether the job has several processes. Set it on every host."""
    coordinator_address: str | None = None
    """HOST or HOST:PORT of the first process. null: detected on Cloud TPU, Slurm, Kubernetes and
    Open MPI."""
    coordinator_port: int | None = pydantic.Field(default=None, ge=1, le=LAST_PORT)
    """Port of the first process, if the address has none. null: 8476 on Cloud TPU VMs of `submit`,
    else 8482."""
    process_count: int | None = pydantic.Field(default=None, ge=1)
    """Number of processes. null: detected like the address."""
    process_index: int | None = pydantic.Field(default=None, ge=0)
    """Index of this process, from 0. null: detected like the address."""
    timeout_seconds: int = pydantic.Field(default=300, ge=1)
    """Seconds to wait for all processes at the start. After this time, an error names the missing
    processes."""
    silence_seconds: float = pydantic.Field(default=15.0, ge=3.0)
    """Seconds without a heartbeat after which a process counts as dead."""

    @property
    def port(self) -> int:
        """The port of the first process, if the address has none."""
        return self.coordinator_port or DEFAULT_PORT


class CompilationCacheSection(Section):
    """Cache of compiled programs for later starts.

    A local cache is limited to 10 GB; it drops the least recently used programs. A cache in a
    bucket has no limit.
    """

    directory: PathText | None = None
    """Directory, local or gs://. null: ``JAX_COMPILATION_CACHE_DIR`` if set, else
    ``~/.cache/bert_jax/xla``."""


class MeshSection(Section):
    """Devices, and how a run is split over them. One axis may be -1, for all remaining devices."""

    platform: Platform = "auto"
    """Platform that the run requires. `auto`: the one that JAX finds."""
    data: int = pydantic.Field(default=-1, ge=-1)
    """Number of parts of a batch. Between steps, the chips of a copy (see `copies`) also share
    parameters and moments along this axis (ZeRO). Without a loop over microbatches or layers, a
    step gathers parameters layer by layer. Otherwise it gathers them before the loop."""
    fsdp: int = pydantic.Field(default=1, ge=-1)
    """Number of further parts of a batch. Parameters are split too, and always gathered layer by
    layer, even within loops over microbatches and layers."""
    tensor: int = pydantic.Field(default=1, ge=-1)
    """Number of parts of the heads, FFN columns and vocabulary."""
    slices: int = pydantic.Field(default=1, ge=1)
    """Number of TPU slices, which share a batch over the data-centre network."""
    copies: int | None = pydantic.Field(default=None, ge=1)
    """Whole copies of parameters and moments in each slice; the chips of a copy are neighbours.
    More copies need less network and more memory. null: a copy for every 16 chips of a TPU slice
    with at least 64 chips, else one. With `fsdp`, one."""
    simulated_devices: int | None = pydantic.Field(default=None, ge=1, le=512)
    """Number of CPU devices to simulate, to try a mesh without accelerators."""
    distributed: DistributedSection = DistributedSection()
    """Settings for several processes."""
    compilation_cache: CompilationCacheSection | None = CompilationCacheSection()
    """Cache of compiled programs. null: no cache."""


def no_device(platform: Platform, reason: str) -> UserError:
    """Returns the error for a platform without usable devices."""
    return UserError(
        "mesh.no_device", f'no usable device for "{platform}" ({reason})', place="mesh.platform"
    )


def mesh_shape(section: MeshSection, device_count: int) -> tuple[int, int, int]:
    """Returns the sizes of data (over all slices), fsdp and tensor, with -1 replaced.

    Raises UserError if there is more than one -1, or the product is not the number of devices.
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
        raise UserError.wrong(
            "mesh.two_free_axes", f"-1 for {commas(free)}", "one axis with -1", place="mesh"
        )
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if free and device_count % fixed == 0:
        sizes[free[0]] = device_count // fixed
    if math.prod(sizes.values()) != device_count:
        raise UserError(
            "mesh.size",
            f"found {' × '.join(f'{axis} {size}' for axis, size in sizes.items())}, allowed: a "
            f"product of {device_count}, the number of devices. One axis may be -1.",
            place="mesh",
        )
    return sizes[DATA], sizes[FSDP], sizes[TENSOR]


def check_slices(section: MeshSection, data: int) -> None:
    """Raises UserError if slices or copies do not divide the data axis."""
    for key, number in (("slices", section.slices), ("copies", section.copies or 1)):
        if data % number:
            raise UserError.wrong(
                f"mesh.{key}", number, f"a divisor of data = {data}", place=f"mesh.{key}"
            )
        data //= number


def check_batch(key: str, rows: int, *, parts: int, accumulation: int) -> None:
    """Raises UserError if a batch cannot be divided into parts and microbatches.

    `key` is the setting of the batch size; `parts` is data × fsdp.
    """
    unit = parts * accumulation
    if rows % unit:
        raise UserError(
            "batch.not_a_multiple",
            f"found {rows}, allowed: a multiple of {unit} (data × fsdp = {parts}, accumulation "
            f"{accumulation})",
            place=key,
        )
