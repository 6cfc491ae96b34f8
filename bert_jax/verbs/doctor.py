"""`bert-jax doctor`: what is installed, which devices there are, and what will go wrong."""

from __future__ import annotations

import collections
import glob
import platform
import shutil
import time
from importlib import metadata
from pathlib import Path
from typing import Final

import jax
import psutil
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from bert_jax.diagnostics.findings import DoctorReport, Finding, ok, problem, render, warn
from bert_jax.diagnostics.network import check_coordinator, check_hosts, expected_hosts
from bert_jax.diagnostics.storage import check_run_dir
from bert_jax.errors import UserError
from bert_jax.parallel.mesh import initialise, make_mesh
from bert_jax.parallel.section import MeshSection

__all__ = ["DoctorReport", "Finding", "doctor", "render"]

_VERSIONS: Final = (
    "bert-jax",
    "jax",
    "jaxlib",
    "libtpu",
    "flax",
    "optax",
    "orbax-checkpoint",
    "grain",
    "tensorflow-datasets",
    "tokenizers",
    "sentencepiece",
    "numpy",
)
_OPTIONAL: Final = frozenset({"libtpu"})

# JAX and its libraries take most of the first; a loader worker holds Python, numpy and grain.
_MEMORY_BYTES: Final = 4 * 2**30
# Batches pass from the loader's worker processes through shared memory; Docker gives 64 MiB of it.
_SHARED_MEMORY_BYTES: Final = 2**30
_SLOW_START_SECONDS: Final = 10.0


def doctor(
    *,
    config: MeshSection | None = None,
    run_dir: str | None = None,
    checkpoint_bytes: int | None = None,
) -> DoctorReport:
    """Looks at everything that a run will need, without starting one.

    ``doctor().ok -> True``; ``doctor(run_dir="/proc/run").of_level("problem") ->
    [Finding("problem", "run directory", "cannot write to /proc: …")]``

    Opens this process's devices, and where `config.distributed` is enabled it joins the other
    processes: start it on every host, as a run.

    Args:
        config: the devices that a run will ask for; None for whatever is there.
        run_dir: where a run will write, local or gs://; None leaves this out.
        checkpoint_bytes: of one checkpoint, for what fits on the disk; None measures in
            checkpoints of BERT-Base.

    Returns:
        What was found. A problem is a finding and never an exception.
    """
    section = config or MeshSection()
    findings = _check_versions()
    findings += check_coordinator(section.distributed)
    findings += _check_devices(section)
    findings += _check_memory()
    if run_dir is not None:
        findings += check_run_dir(run_dir, checkpoint_bytes=checkpoint_bytes)
    return DoctorReport(tuple(findings))


def _check_versions() -> list[Finding]:
    findings = [ok("python", f"{platform.python_version()} on {platform.platform()}")]
    requirements = _requirements()
    for name in _VERSIONS:
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            if name not in _OPTIONAL:
                findings.append(problem(name, "not installed: pip install bert-jax"))
            continue
        allowed = requirements.get(name)
        if allowed is None or allowed.contains(found, prereleases=True):
            findings.append(ok(name, found))
        else:
            findings.append(problem(name, f"found {found}, allowed: {allowed}"))
    return findings


def _requirements() -> dict[str, SpecifierSet]:
    """Returns the versions that this package asks for: ``{"jax": SpecifierSet(">=0.10.0"), …}``."""
    try:
        texts = metadata.requires("bert-jax") or []
    except metadata.PackageNotFoundError:  # a source tree that was never installed
        return {}
    return {each.name: each.specifier for each in map(Requirement, texts)}


def _check_devices(section: MeshSection) -> list[Finding]:
    # Before the devices are opened: libtpu writes to the environment that this reads.
    expected = expected_hosts(section.distributed)
    begin = time.monotonic()
    try:
        initialise(section)
    except UserError as error:
        return [problem("devices", str(error)), *_check_unused_hardware("none")]
    seconds = time.monotonic() - begin
    devices = jax.devices()
    kinds = collections.Counter(device.device_kind for device in devices)
    shown = ", ".join(f"{count} × {kind}" for kind, count in kinds.items())
    text = f'backend "{jax.default_backend()}": {shown}, opened in {seconds:.1f} s'
    findings = [ok("devices", text)]
    if seconds > _SLOW_START_SECONDS:
        findings.append(
            warn("devices", f"JAX took {seconds:.0f} s to open its devices, at every start")
        )
    findings += _check_unused_hardware(jax.default_backend())
    findings.append(
        check_hosts(expected, seen=jax.process_count(), enabled=section.distributed.enabled)
    )
    try:
        sizes = make_mesh(section).shape
        findings.append(ok("mesh", " × ".join(f"{axis} {size}" for axis, size in sizes.items())))
    except UserError as error:
        findings.append(problem("mesh", str(error)))
    return findings


def _check_unused_hardware(backend: str) -> list[Finding]:
    """Names accelerators of this host that JAX does not use, and drivers without an accelerator."""
    asked = jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue] (made at run time)
    if backend in ("tpu", "gpu") or asked == "cpu":
        return []
    findings = []
    tpus = [*glob.glob("/dev/accel[0-9]*"), *glob.glob("/dev/vfio/[0-9]*")]
    if tpus:
        findings.append(
            warn("tpu", f"{tpus[0]} is there but not used: pip install 'bert-jax[tpu]'")
        )
    elif _installed("libtpu"):
        findings.append(
            warn(
                "tpu",
                "libtpu is installed but there is no TPU: JAX looks for one at each start; set "
                "JAX_PLATFORMS=cpu, or uninstall it unless you compile for TPUs here",
            )
        )
    if Path("/dev/nvidia0").exists():
        findings.append(
            warn("gpu", "/dev/nvidia0 is there but not used: pip install 'bert-jax[gpu]'")
        )
    return findings


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _check_memory() -> list[Finding]:
    memory = psutil.virtual_memory()
    available, total = memory.available, memory.total
    # In a container psutil tells the host's memory; the kernel enforces the container's.
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        total = min(total, int(text))
        available = min(available, total)
    text = f"{available / 2**30:.1f} GiB of {total / 2**30:.1f} GiB free"
    findings = [ok("memory", text)]
    if available < _MEMORY_BYTES:
        findings = [warn("memory", f"{text}; a run needs about {_MEMORY_BYTES / 2**30:.0f} GiB")]
    shared = Path("/dev/shm")
    if shared.is_dir() and (free := shutil.disk_usage(shared).free) < _SHARED_MEMORY_BYTES:
        findings.append(
            warn(
                "shared memory",
                f"{free / 2**20:.0f} MiB free in {shared}, through which loader workers hand over "
                "batches: docker run --shm-size=2g, or loader.workers=0",
            )
        )
    return findings
