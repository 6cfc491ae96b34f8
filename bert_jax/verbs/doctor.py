"""`bert-jax doctor`: checks installed software, devices, and a run's inputs before it starts.

It also verifies run directories. Yields findings one by one and imports slow libraries late, so
that the first lines appear at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from bert_jax.diagnostics.findings import DoctorReport, Finding, checked
from bert_jax.diagnostics.machine import check_memory, check_run_dir, check_versions
from bert_jax.diagnostics.network import check_coordinator
from bert_jax.errors import UserError
from bert_jax.narration import doing
from bert_jax.parallel.section import MeshSection

if TYPE_CHECKING:
    from bert_jax.config import RunConfig
    from bert_jax.model.architecture import EncoderArchitecture
    from bert_jax.model.section import Execution


def doctor(*, config: MeshSection | None = None, run_dir: str | None = None) -> DoctorReport:
    """Checks the requirements of a run, without starting a run.

    ``doctor().ok -> True``; ``doctor(run_dir="/proc/run").of_level("problem") ->
    [Finding("problem", "run directory", "cannot write to /proc: …")]``

    Opens this process's devices. If `config.distributed` is enabled, joins the other processes, so
    start the doctor on every host.

    Args:
        config: devices of the planned run. Default: all devices.
        run_dir: directory of the planned run, local or gs://. Default: not checked.

    Returns:
        The findings. Reports problems as findings, never as exceptions.
    """
    return DoctorReport(tuple(machine_findings(config or MeshSection(), run_dir=run_dir)))


def machine_findings(
    section: MeshSection,
    *,
    run_dir: str | None = None,
    checkpoint_bytes: Callable[[], int | None] = lambda: None,
) -> Iterator[Finding]:
    """Yields the findings of `doctor`; `checkpoint_bytes` returns the size of one checkpoint."""
    yield from check_versions()
    yield from check_memory()
    yield from check_coordinator(section.distributed)
    with doing("starting JAX", at_once=True):
        from bert_jax.diagnostics.devices import check_devices

        devices = list(check_devices(section))
    yield from devices
    if run_dir is not None:
        yield from check_run_dir(run_dir, checkpoint_bytes=checkpoint_bytes())


def config_findings(config: RunConfig) -> Iterator[Finding]:
    """Yields findings about a configured run: this machine, inputs and disk space."""
    problems = False
    trained = functools.cache(functools.partial(_trained, config))  # opens the tokenizer once
    for finding in machine_findings(
        config.mesh, run_dir=config.run_dir, checkpoint_bytes=lambda: _checkpoint_bytes(trained())
    ):
        problems |= finding.level == "problem"
        yield finding
    from bert_jax.diagnostics.inputs import finetuning_inputs, pretraining_inputs
    from bert_jax.diagnostics.masks import check_masks

    if config.train is not None and config.tokenizer is not None:
        inputs = pretraining_inputs(
            tokenizer=config.tokenizer,
            model=config.model,
            objective=config.objective,
            train=config.train,
            optimizer=config.optimizer,
        )
        yield from (checked(*each) for each in inputs)
        yield from check_masks(
            config.train, tokenizer=config.tokenizer, objective=config.objective, seed=config.seed
        )
    if config.finetune is not None:
        yield from (checked(*each) for each in finetuning_inputs(config.finetune))
    if not problems and (step := trained()) is not None and step.longest:
        from bert_jax.diagnostics.devices import check_kernels

        yield from check_kernels(
            step.execution,
            architecture=step.architecture,
            mesh=config.mesh,
            longest=step.longest,
            pretraining=config.finetune is None,
        )


def run_findings(run_dir: str, *, curves: str | None = None) -> Iterator[Finding]:
    """Verifies a run directory, local or gs://; yields its findings.

    ``Finding("problem", "checkpoint 4000", "params/d/1f… is missing")``

    Reads all checkpoints, settings, metrics and datasets. Changes no file. If `curves`, a folder,
    has a reference curve of the run's recipe, compares the run with it; by default, the folder of
    the package.
    """
    with doing("starting JAX", at_once=True):
        from bert_jax.diagnostics.run_directory import check_run
    yield from check_run(run_dir, curves=curves)


class _Trained(NamedTuple):
    """The model that a configuration trains."""

    build: Any  # builder for `define_model`
    execution: Execution
    architecture: EncoderArchitecture
    longest: int  # tokens of the longest rows; 0 without phases


def _trained(config: RunConfig) -> _Trained | None:
    """Returns the model that a configuration trains, or None if it has no valid model."""
    from bert_jax.encoders.build import encoder_builder
    from bert_jax.runs.run_directory import open_run
    from bert_jax.text import load_tokenizer

    try:
        if (section := config.finetune) is not None:
            origin = open_run(section.init_from)
            execution = section.executed(origin.model.execution)
            return _Trained(origin.build, execution, origin.architecture, section.max_length)
        if config.model is None or config.tokenizer is None:
            return None
        tokenizer = load_tokenizer(config.tokenizer)
        architecture = config.model.resolve(
            vocab_size=tokenizer.vocab_size, padding_id=tokenizer.special.pad
        )
    except UserError:
        return None
    build = encoder_builder(architecture, config.model.execution, config.model.heads)
    phases = config.train.phases if config.train else ()
    longest = max((phase.seq_length for phase in phases), default=0)
    return _Trained(build, config.model.execution, architecture, longest)


def _checkpoint_bytes(trained: _Trained | None) -> int | None:
    """Returns the bytes of one checkpoint: parameters and two moments."""
    import jax

    from bert_jax.train.state import define_model

    if trained is None:
        return None
    leaves = jax.tree.leaves(define_model(trained.build).params)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) * 3
