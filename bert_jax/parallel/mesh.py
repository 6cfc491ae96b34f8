"""Platform, processes and mesh of devices, from the section `mesh`."""

import functools
import glob
import importlib.metadata
import importlib.util
import itertools
import math
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jax
import numpy as np
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import AxisType, Mesh

from bert_jax.data.host_share import HostShare
from bert_jax.errors import UserError, first_line
from bert_jax.narration import doing, hush
from bert_jax.parallel.compiling import use_compilation_cache
from bert_jax.parallel.processes import is_first, join
from bert_jax.parallel.section import MeshSection, check_slices, mesh_shape, no_device
from bert_jax.parallel.sharding_rules import MESH_AXES, TENSOR

# Variables that do not indicate a TPU. JAX sets them, or users set them to compile without a TPU.
_NOT_OF_A_TPU: Final = {"TPU_LIBRARY_PATH", "TPU_SKIP_MDS_QUERY", "TPU_LOG_DIR"}

_STANDARD_OUTPUT: Final = 1

# Over long axes without wrap-around, a sum uses one link per chip. Of 64 v5e chips, copies of 16
# need half of the network time of one copy, and copies of 8 no less (docs/results/planning.md).
_CHIPS_OF_COPY: Final = 16
_CHIPS_OF_SLICE: Final = 64


def initialise(section: MeshSection, *, command: Mapping[str, Any] | None = None) -> None:
    """Joins the other processes, chooses the platform and opens the compilation cache.

    Call it before the first computation. `command` is the command and settings of this process, as
    nested plain JSON.

    Raises:
        UserError: the platform is missing (JAX alone would silently use the CPU), the processes
            cannot find each other, or their commands differ.
        PeerLost: a process did not report in time.
    """
    if section.distributed.enabled:
        # Join first: if this process failed earlier, the other processes would keep waiting.
        with doing("waiting for the other processes"):
            join(section.distributed, command=command)
    if section.simulated_devices is not None:
        if section.platform not in ("auto", "cpu"):
            raise UserError(
                "mesh.simulated_devices",
                f'found {section.simulated_devices} with "{section.platform}", allowed: auto, cpu',
                place="mesh.simulated_devices",
            )
        _set_before_backend("jax_platforms", "cpu")
        _set_before_backend("jax_num_cpu_devices", section.simulated_devices)
    elif section.platform == "cpu" or (section.platform == "auto" and _only_cpus_here()):
        _set_before_backend("jax_platforms", "cpu")
    elif section.platform == "gpu" and (platforms := _gpu_platforms()) is not None:
        _set_before_backend("jax_platforms", platforms)
    use_compilation_cache(section.compilation_cache)
    try:
        with doing("opening the devices"):
            found = jax.default_backend()
    except (RuntimeError, AssertionError) as error:  # JAX asserts that some platform works
        wanted = os.environ.get("JAX_PLATFORMS")
        reason = first_line(error) if str(error) else f"JAX_PLATFORMS is {wanted}"
        raise no_device(section.platform, reason) from error
    if not is_first():
        hush()
    if section.platform not in ("auto", found):
        raise UserError(
            "mesh.platform",
            f'found "{section.platform}", but here are {len(jax.devices())} devices of "{found}"',
            place="mesh.platform",
        )
    if found == "cpu" and jax.process_count() > 1:
        _connect_cpus()


@functools.cache
def _connect_cpus() -> None:
    """Runs a first collective on all processes. Drops the lines that Gloo prints meanwhile."""
    sys.stdout.flush()
    original = os.dup(_STANDARD_OUTPUT)
    with tempfile.TemporaryFile() as printed:
        os.dup2(printed.fileno(), _STANDARD_OUTPUT)
        try:
            multihost_utils.sync_global_devices("connect")
        finally:
            sys.stdout.flush()
            os.dup2(original, _STANDARD_OUTPUT)
            os.close(original)
            printed.seek(0)
            lines = (line for line in printed if not line.startswith(b"[Gloo] "))
            os.write(_STANDARD_OUTPUT, b"".join(lines))


def open_mesh(section: MeshSection | None = None, *, one_device: bool = False) -> Mesh:
    """Joins the other processes, chooses the platform and returns the mesh.

    Without a section, the mesh has all devices. With `one_device`, it has only the first device.
    Raises UserError like `initialise` and `mesh_shape`.
    """
    section = section or MeshSection()
    initialise(section)
    return make_mesh(section, jax.devices()[:1] if one_device else None)


def make_mesh(section: MeshSection, devices: Sequence[Any] | None = None) -> Mesh:
    """Returns the mesh with axes copy, data, fsdp, tensor.

    The setting `mesh.data` is the product of the axes copy and data. The axis copy has the copies
    of all slices. Only this axis uses the network between slices, for one gradient sum per step.
    `devices` defaults to `jax.devices()`. To compile without an accelerator, pass the devices of a
    topology.
    """
    devices = list(devices) if devices is not None else jax.devices()
    data, fsdp, tensor = mesh_shape(section, len(devices))
    check_slices(section, data)
    data //= section.slices
    copies = section.copies or _default_copies(section, devices, data)
    inside = (data // copies, fsdp, tensor)
    if section.slices > 1:
        grid = _slices(section.slices, (data, fsdp, tensor), devices)
    elif devices[0].platform == "cpu":
        grid = np.asarray(devices).reshape(data, fsdp, tensor)
    else:
        # Without this option, a 4×4 torus does not permit a tensor axis of 2.
        grid = mesh_utils.create_device_mesh(
            (data, fsdp, tensor), devices=devices, allow_split_physical_axes=True
        )
    if copies > 1 and hasattr(devices[0], "coords"):
        slices = grid.reshape(section.slices, -1)
        grid = np.stack([_neighbours(list(each), copies) for each in slices])
    return Mesh(grid.reshape(-1, *inside), MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def _slices(count: int, inside: tuple[int, int, int], devices: Sequence[Any]) -> np.ndarray:
    """Returns the devices of each slice, [slices · data, fsdp, tensor]."""
    try:
        return mesh_utils.create_hybrid_device_mesh(
            inside, (count, 1, 1), devices=devices, allow_split_physical_axes=True
        )
    except (ValueError, AttributeError) as error:
        raise UserError(
            "mesh.slices_of_devices",
            f"found {count}, but the devices do not form that many slices ({first_line(error)})",
            place="mesh.slices",
        ) from error


def _default_copies(section: MeshSection, devices: Sequence[Any], data: int) -> int:
    """Returns `mesh.copies` for `data` parts of a batch in a slice."""
    chips = len(devices) // section.slices
    copies = chips // _CHIPS_OF_COPY
    large = devices[0].platform == "tpu" and chips >= _CHIPS_OF_SLICE
    return copies if large and section.fsdp == 1 and data % copies == 0 else 1


def _neighbours(devices: Sequence[Any], copies: int) -> np.ndarray:
    """Returns the devices of a slice, [copies, devices of a copy]. A copy is a block of the torus.

    A long block would use few links at a time. So of all blocks of the size, this takes one with
    the least sum of sides.
    """
    places = np.array([device.coords for device in devices])
    sizes = places.max(axis=0) - places.min(axis=0) + 1
    chips = math.prod(sizes)
    parts = [
        each
        for each in itertools.product(*(range(1, size + 1) for size in sizes))
        if math.prod(each) == copies and not (sizes % each).any()
    ]
    if not parts:
        raise UserError(
            "mesh.copies_of_torus",
            f"found {copies}, allowed: divisors of {'×'.join(map(str, sizes))}, the torus",
            place="mesh.copies",
        )
    best = min(parts, key=lambda each: (sizes // each).sum())
    grid = np.array(sorted(devices, key=lambda device: (*device.coords, device.core_on_chip)))
    split = [side for pair in zip(best, sizes // best, strict=True) for side in pair]
    blocks = grid.reshape(*split, len(devices) // chips)
    return blocks.transpose(0, 2, 4, 1, 3, 5, 6).reshape(copies, -1)


def process_share(mesh: Mesh, *, process_index: int | None = None) -> HostShare:
    """Returns the part of a batch's rows that a process reads for its devices.

    `process_index` defaults to this process. Processes whose devices differ only along the tensor
    axis read the same rows. Raises UserError if the mesh splits the rows unevenly over the
    processes.
    """
    process = jax.process_index() if process_index is None else process_index
    rows = mesh.devices.reshape(-1, mesh.shape[TENSOR])
    held: dict[int, set[int]] = {}
    for row, devices in enumerate(rows):
        for device in devices:
            held.setdefault(device.process_index, set()).add(row)
    shares = sorted({tuple(sorted(group)) for group in held.values()})
    sizes = {len(share) for share in shares}
    if len(sizes) > 1 or sum(map(len, shares)) != len(rows):
        raise UserError(
            "mesh.uneven_processes",
            f"{dict(mesh.shape)} splits a batch unevenly over {len(held)} processes",
            place="mesh",
        )
    return HostShare(shares.index(tuple(sorted(held[process]))), len(shares))


def _gpu_platforms() -> str | None:
    """Returns the platforms to open for `platform: gpu`, or None if JAX should choose.

    By default, JAX would also open a TPU, and libtpu prints errors if there is none.
    """
    plugins = {plugin.name for plugin in importlib.metadata.entry_points(group="jax_plugins")}
    found = [kind for kind in ("cuda", "rocm") if any(kind in name for name in plugins)]
    return ",".join([*found, "cpu"]) if found or not plugins else None


def _only_cpus_here() -> bool:
    """Returns whether the host has only CPUs: no accelerator, TPU variable or JAX plugin.

    On such a host, an installed libtpu would search for a TPU and print five lines of errors.
    """
    asked = jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue] (made at run time)
    if asked or any(name.startswith("TPU_") for name in os.environ.keys() - _NOT_OF_A_TPU):
        return False
    devices = [*glob.glob("/dev/accel*"), *glob.glob("/dev/vfio/[0-9]*")]
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    return not devices and not plugins and importlib.util.find_spec("jax_plugins") is None


def _set_before_backend(option: str, value: object) -> None:
    if getattr(jax.config, option) == value:
        return
    try:
        jax.config.update(option, value)
    except RuntimeError as error:
        raise UserError(
            "mesh.too_late",
            f"cannot set {option} = {value}: JAX has opened its devices. Start a new process.",
            place="mesh",
        ) from error
