"""`bert-jax doctor`: what is installed, which devices there are, and what will go wrong.

Of a run directory: whether it holds what was written to it.
"""

from __future__ import annotations

import jax

from bert_jax.config import RunConfig
from bert_jax.diagnostics.devices import check_attention, check_devices
from bert_jax.diagnostics.findings import DoctorReport, Finding, render
from bert_jax.diagnostics.inputs import check_inputs, finetuning_inputs, pretraining_inputs
from bert_jax.diagnostics.memory import check_memory
from bert_jax.diagnostics.network import check_coordinator
from bert_jax.diagnostics.run_directory import check_run
from bert_jax.diagnostics.storage import check_run_dir
from bert_jax.diagnostics.versions import check_versions
from bert_jax.errors import UserError
from bert_jax.model.bert import bert_builder
from bert_jax.model.config import resolve_architecture
from bert_jax.parallel.section import MeshSection
from bert_jax.runs.directory import open_run
from bert_jax.text import load_tokenizer
from bert_jax.train.state import define_model

__all__ = ["DoctorReport", "Finding", "doctor", "doctor_config", "doctor_run", "render"]


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


def doctor_config(config: RunConfig) -> DoctorReport:
    """Looks at everything that a configuration asks for: machine, inputs, room for checkpoints.

    ``doctor_config(load_config("run.yaml")).ok -> True``

    Args:
        config: of a pretraining or a fine-tuning run.
    """
    inputs: list[Finding] = []
    if config.train is not None and config.tokenizer is not None:
        inputs += check_inputs(
            pretraining_inputs(
                tokenizer=config.tokenizer, train=config.train, optimizer=config.optimizer
            )
        )
    if config.finetune is not None:
        inputs += check_inputs(finetuning_inputs(config.finetune))
    report = doctor(
        config=config.mesh, run_dir=config.run_dir, checkpoint_bytes=_checkpoint_bytes(config)
    )
    if config.model is not None and config.train is not None and not report.of_level("problem"):
        longest = max(phase.seq_length for phase in config.train.phases)
        inputs.append(check_attention(config.model.execution.attention, longest=longest))
    return DoctorReport((*report.findings, *inputs))


def _checkpoint_bytes(config: RunConfig) -> int | None:
    """Returns the size of one checkpoint: parameters and two moments; None if it is not known."""
    try:
        if config.finetune is not None:
            build = open_run(config.finetune.init_from).build
        elif config.model is not None and config.tokenizer is not None:
            vocab_size = load_tokenizer(config.tokenizer).vocab_size
            architecture = resolve_architecture(config.model, vocab_size=vocab_size)
            build = bert_builder(architecture, config.model.execution, config.model.heads)
        else:
            return None
    except UserError:  # `check_inputs` says it
        return None
    leaves = jax.tree.leaves(define_model(build).params)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) * 3


def doctor_run(run_dir: str) -> DoctorReport:
    """Verifies a run directory: every file of its checkpoints, its settings, metrics and datasets.

    ``doctor_run("runs/base").of_level("problem") -> [Finding("problem", "checkpoint 4000",
    "params/d/1f… is missing")]``

    Args:
        run_dir: of `pretrain`, `finetune` or `import`, local or gs://; nothing in it is changed.
    """
    return DoctorReport(tuple(check_run(run_dir)))
