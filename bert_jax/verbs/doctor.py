"""`bert-jax doctor`: what is installed, which devices there are, and what will go wrong.

Of a run directory: whether it holds what was written to it.
"""

from __future__ import annotations

from bert_jax.diagnostics.devices import check_devices
from bert_jax.diagnostics.findings import DoctorReport, Finding, render
from bert_jax.diagnostics.memory import check_memory
from bert_jax.diagnostics.network import check_coordinator
from bert_jax.diagnostics.run_directory import check_run
from bert_jax.diagnostics.storage import check_run_dir
from bert_jax.diagnostics.versions import check_versions
from bert_jax.parallel.section import MeshSection

__all__ = ["DoctorReport", "Finding", "doctor", "doctor_run", "render"]


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
        config: the devices that a run will ask for; None for all there are.
        run_dir: where a run will write, local or gs://; None leaves this out.
        checkpoint_bytes: of one checkpoint, for what fits on the disk; None measures in
            checkpoints of BERT-Base.

    Returns:
        What was found. A problem is a finding and never an exception.
    """
    section = config or MeshSection()
    findings = check_versions()
    findings += check_coordinator(section.distributed)
    findings += check_devices(section)
    findings += check_memory()
    if run_dir is not None:
        findings += check_run_dir(run_dir, checkpoint_bytes=checkpoint_bytes)
    return DoctorReport(tuple(findings))


def doctor_run(run_dir: str) -> DoctorReport:
    """Verifies a run directory: every file of its checkpoints, its settings, metrics and datasets.

    ``doctor_run("runs/base").of_level("problem") -> [Finding("problem", "checkpoint 4000",
    "params/d/1f… is missing")]``

    Args:
        run_dir: of `pretrain`, `finetune` or `import`, local or gs://; nothing in it is changed.
    """
    return DoctorReport(tuple(check_run(run_dir)))
