"""The devices and the mesh that a run will have."""

import collections
import glob
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import jax

from bert_jax.diagnostics.findings import Finding, ok, problem, warn
from bert_jax.diagnostics.network import check_hosts, expected_hosts
from bert_jax.diagnostics.versions import is_installed
from bert_jax.errors import UserError, installing
from bert_jax.model.config import Architecture, Execution
from bert_jax.parallel.mesh import initialise, make_mesh
from bert_jax.parallel.section import MeshSection

_SLOW_START_SECONDS: Final = 10.0


def check_devices(section: MeshSection) -> Iterator[Finding]:
    """Opens this process's devices and makes the mesh."""
    # Before the devices are opened: libtpu writes to the environment that this reads.
    expected = expected_hosts(section.distributed)
    begin = time.monotonic()
    try:
        initialise(section)
    except UserError as error:
        yield problem("devices", str(error))
        yield from _check_unused_hardware("none")
        return
    seconds = time.monotonic() - begin
    kinds = collections.Counter(device.device_kind for device in jax.devices())
    shown = ", ".join(f"{count} × {kind}" for kind, count in kinds.items())
    yield ok("devices", f'backend "{jax.default_backend()}": {shown}, opened in {seconds:.1f} s')
    if seconds > _SLOW_START_SECONDS:
        yield warn("devices", f"JAX took {seconds:.0f} s to open its devices, at every start")
    yield from _check_unused_hardware(jax.default_backend())
    yield check_hosts(expected, seen=jax.process_count(), enabled=section.distributed.enabled)
    try:
        sizes = make_mesh(section).shape
        yield ok("mesh", " × ".join(f"{axis} {size}" for axis, size in sizes.items()))
    except UserError as error:
        yield problem("mesh", str(error))


def _check_unused_hardware(backend: str) -> Iterator[Finding]:
    """Names accelerators of this host that JAX does not use, and drivers without an accelerator."""
    asked = jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue] (made at run time)
    if backend in ("tpu", "gpu") or asked == "cpu":
        return
    tpus = [*glob.glob("/dev/accel[0-9]*"), *glob.glob("/dev/vfio/[0-9]*")]
    if tpus:
        yield warn("tpu", f"{tpus[0]} is there but not used: {installing('tpu')}")
    elif is_installed("libtpu"):
        yield warn(
            "tpu",
            "libtpu is installed but there is no TPU: JAX looks for one at each start; set "
            "JAX_PLATFORMS=cpu, or uninstall it unless you compile for TPUs here",
        )
    if Path("/dev/nvidia0").exists():
        yield warn("gpu", f"/dev/nvidia0 is there but not used: {installing('gpu')}")


def check_attention(
    execution: Execution, *, architecture: Architecture, mesh: MeshSection, longest: int
) -> Finding:
    """Says which attention the train step computes here for rows of so many tokens, and why."""
    # With the kernels, which load slowly.
    from bert_jax.model.execution import choose

    try:
        found = choose(
            *("attention", execution, jax.devices()[0]),
            architecture=architecture,
            mesh=make_mesh(mesh),
            longest=longest,
        )
    except UserError as error:
        return problem("attention", str(error))
    return ok("attention", f"{found.name}: {found.why}")


def check_kernels(
    execution: Execution,
    *,
    architecture: Architecture,
    mesh: MeshSection,
    longest: int,
    pretraining: bool,
) -> Finding:
    """Says how the rest of a layer and the loss of masked pieces are computed here."""
    from bert_jax.model.execution import resolve_execution

    others = execution.model_copy(update={"attention": "xla"})  # see `check_attention`
    try:
        found = resolve_execution(
            others, architecture=architecture, mesh=make_mesh(mesh), longest=longest
        )
    except UserError as error:
        return problem("kernels", str(error))
    loss = f"loss: {found.loss}, " if pretraining else ""
    return ok("kernels", f"norm: {found.norm}, {loss}ffn: {found.ffn}")
