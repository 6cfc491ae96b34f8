"""Checks of a run's devices, its mesh and its kernels."""

import collections
import glob
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jax

from bert_jax.diagnostics.findings import Finding, checked, ok, problem, warn
from bert_jax.diagnostics.machine import installed
from bert_jax.diagnostics.network import check_hosts, expected_hosts
from bert_jax.errors import UserError, installing
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import Execution
from bert_jax.parallel.mesh import initialise, make_mesh
from bert_jax.parallel.section import MeshSection

_SLOW_START_SECONDS: Final = 10.0


def check_devices(section: MeshSection) -> Iterator[Finding]:
    """Opens this process's devices and makes the mesh; yields the findings."""
    # Read the environment first: libtpu changes it when it opens the devices.
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
        yield warn("devices", f"JAX needs {seconds:.0f} s to open its devices at every start")
    yield from _check_unused_hardware(jax.default_backend())
    yield check_hosts(expected, seen=jax.process_count(), enabled=section.distributed.enabled)
    yield checked(
        "mesh",
        lambda: " × ".join(f"{axis} {size}" for axis, size in make_mesh(section).shape.items()),
    )


def _check_unused_hardware(backend: str) -> Iterator[Finding]:
    """Yields warnings about accelerators that JAX does not use, and about libtpu without a TPU."""
    asked = jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue] (made at run time)
    if backend in ("tpu", "gpu") or asked == "cpu":
        return
    tpus = [*glob.glob("/dev/accel[0-9]*"), *glob.glob("/dev/vfio/[0-9]*")]
    if tpus:
        yield warn("tpu", f"{tpus[0]} exists but is not used. Run {installing('tpu')}.")
    elif installed("libtpu"):
        yield warn(
            "tpu",
            "libtpu is installed but there is no TPU, and JAX searches for one at each start. Set "
            "JAX_PLATFORMS=cpu, or uninstall libtpu if you do not compile for TPUs here.",
        )
    if Path("/dev/nvidia0").exists():
        yield warn("gpu", f"/dev/nvidia0 exists but is not used. Run {installing('gpu')}.")


def check_kernels(
    execution: Execution,
    *,
    architecture: EncoderArchitecture,
    mesh: MeshSection,
    longest: int,
    pretraining: bool,
) -> Iterator[Finding]:
    """Yields the implementations that a train step uses for attention, layer norm, FFN and loss.

    With `dtype: float32`, also yields the precision of matrix products.

    `longest` is the number of tokens of the longest rows. `pretraining` adds the loss.
    """
    # Import here, because loading the kernels is slow.
    from bert_jax.encoders.kernel_choice import choose, interpreted

    device = jax.devices()[0]

    def chosen(part: Any) -> Any:
        sizes = {"architecture": architecture, "mesh": make_mesh(mesh), "longest": longest}
        return choose(part, execution, device, **sizes)

    parts = ("norm", "loss", "ffn") if pretraining else ("norm", "ffn")
    yield checked("attention", lambda: ": ".join(chosen("attention")))
    yield checked("kernels", lambda: ", ".join(f"{part}: {chosen(part).name}" for part in parts))
    if (warning := interpreted(execution, device)) is not None:
        yield warn("kernels", warning)
    if execution.dtype == "float32":
        yield ok("products", "float32 in full precision; a TPU needs six bfloat16 passes for each")
