"""`bert-jax doctor`: checks installed software, devices, and a run's inputs before it starts.

It also verifies run directories. Yields findings one by one and imports slow libraries late, so
that the first lines appear at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from bert_jax.diagnostics.findings import DoctorReport, Finding, checked, ok, warn
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


def config_findings(config: RunConfig, *, init_from: str | None = None) -> Iterator[Finding]:
    """Yields findings about a configured run: this machine, inputs and disk space.

    `init_from` is the model that the run of pretraining will start from.
    """
    own, problems = config, False
    if init_from is not None:
        config = _with_network(config, init_from)
    trained = functools.cache(functools.partial(_trained, config))  # opens the tokenizer once
    for finding in machine_findings(
        config.mesh,
        run_dir=config.run_dir,
        checkpoint_bytes=lambda: _checkpoint_bytes(config, trained()),
    ):
        problems |= finding.level == "problem"
        yield finding
    from bert_jax.diagnostics.inputs import (
        check_masks,
        finetuning_inputs,
        pretraining_inputs,
        score_inputs,
    )
    from bert_jax.diagnostics.overlap import check_overlap
    from bert_jax.workflows.epochs import count_epochs, describe_epochs

    if init_from is not None:
        yield checked("--init-from", lambda: _check_initial(own, init_from))
    if config.train is not None and config.tokenizer is not None:
        inputs = pretraining_inputs(
            tokenizer=config.tokenizer,
            model=config.model,
            objective=config.objective,
            train=config.train,
            optimizer=config.optimizer,
        )
        yield from dict.fromkeys(checked(*each) for each in inputs)  # each dataset once
        if epochs := list(count_epochs(config.train)):
            line, repeats = describe_epochs(epochs)
            yield (warn if repeats else ok)("epochs", line)
        yield from check_masks(
            config.train, tokenizer=config.tokenizer, objective=config.objective, seed=config.seed
        )
        yield from check_overlap(config.train, tokenizer=config.tokenizer)
    if config.finetune is not None:
        yield from (checked(*each) for each in finetuning_inputs(config.finetune))
    if config.score is not None:
        yield from (checked(*each) for each in score_inputs(config.score))
    if not problems and (step := trained()) is not None and step.longest:
        from bert_jax.diagnostics.devices import check_kernels

        yield from check_kernels(
            step.execution,
            architecture=step.architecture,
            mesh=config.mesh,
            longest=step.longest,
            pretraining=config.finetune is None,
        )
        yield from _check_step_memory(config)


def run_findings(run_dir: str) -> Iterator[Finding]:
    """Verifies a run directory, local or gs://; yields its findings.

    ``Finding("problem", "checkpoint 4000", "params/d/1f… is missing")``

    Reads all checkpoints, settings, metrics and datasets. Changes no file.
    """
    with doing("starting JAX", at_once=True):
        from bert_jax.diagnostics.run_directory import check_run
    yield from check_run(run_dir)


def _with_network(config: RunConfig, init_from: str) -> RunConfig:
    """Returns the configuration with the network of a run; without any for other models."""
    from bert_jax.runs.run_directory import open_run

    if (own := config.model) is None:
        return config
    try:
        model = open_run(init_from).model
    except UserError:  # `_check_initial` names it
        return config.model_copy(update={"model": None})
    kept = {"execution": own.execution, "heads": own.heads}
    return config.model_copy(update={"model": model.model_copy(update=kept)})


def _check_initial(config: RunConfig, init_from: str) -> str:
    """Describes the model to start from. Raises UserError as `pretrain` does if it does not fit."""
    from bert_jax.diagnostics.inputs import check_origin
    from bert_jax.runs.run_directory import is_run, open_run
    from bert_jax.text import load_tokenizer
    from bert_jax.workflows.initial_model import inherit, require_tokenizer

    found = check_origin(init_from)
    if is_run(init_from):
        run = open_run(init_from)
        if config.model is not None:
            inherit(config.model, run)
        if config.tokenizer is not None:
            tokenizer = load_tokenizer(config.tokenizer)
            require_tokenizer(run, tokenizer, found=config.tokenizer, name=init_from)
    return found


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


def _check_step_memory(config: RunConfig) -> Iterator[Finding]:
    """Compares the memory that the largest step of pretraining needs with the free memory.

    Skips distillation, whose teacher may not be on this machine yet.
    """
    from bert_jax.objectives.registry import teacher_of
    from bert_jax.parallel.memory import describe_bytes, device_memory
    from bert_jax.parallel.mesh import make_mesh
    from bert_jax.planning.memory import estimate_memory
    from bert_jax.verbs.plan import train_step
    from bert_jax.workflows.pretraining_settings import LESS_MEMORY

    if config.finetune is not None or config.train is None or teacher_of(config.objective):
        return
    if (memory := device_memory()) is None:
        return
    try:
        step, mesh = train_step(config, "this machine"), make_mesh(config.mesh)
        phases = range(len(config.train.phases))
        with doing("estimating the memory of a step"):
            found = {
                phase: estimate_memory(step.model_copy(update={"phase": phase}), mesh)
                for phase in phases
            }
    except UserError:  # other checks refuse it
        return
    phase = max(phases, key=lambda phase: found[phase].peak)
    needs = found[phase]
    sizes = needs.peak, needs.parameters + needs.optimizer, needs.temporaries
    peak, state, rest = map(describe_bytes, sizes)
    text = (
        f"a step of phase {phase} needs about {peak} per device: {state} for "
        f"parameters and moments, {rest} for activations and gradients. "
        f"Found {memory.describe()} on {memory.owner}"
    )
    if memory.holds(needs.peak):
        yield ok("step", text)
    else:
        yield warn("step", f"{text}. {LESS_MEMORY}")


def _checkpoint_bytes(config: RunConfig, trained: _Trained | None) -> int | None:
    """Returns the bytes of one checkpoint: parameters, two moments and the moving average."""
    import jax

    from bert_jax.train.state import define_model

    if trained is None:
        return None
    leaves = jax.tree.leaves(define_model(trained.build).params)
    copies = 4 if config.train is not None and config.train.ema is not None else 3
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) * copies
