"""`bert-jax doctor`: what is installed, which devices there are, and what will go wrong.

Of a run directory: whether it holds what was written to it. What is found is given one by one, and
what takes seconds to load is loaded when it is needed, so that the first lines come at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from bert_jax.diagnostics.findings import DoctorReport, Finding
from bert_jax.diagnostics.memory import check_memory
from bert_jax.diagnostics.network import check_coordinator
from bert_jax.diagnostics.versions import check_versions
from bert_jax.errors import UserError
from bert_jax.narration import doing
from bert_jax.parallel.section import MeshSection

if TYPE_CHECKING:
    from bert_jax.config import RunConfig
    from bert_jax.model.config import Architecture, Execution


def doctor(*, config: MeshSection | None = None, run_dir: str | None = None) -> DoctorReport:
    """Looks at everything that a run will need, without starting one.

    ``doctor().ok -> True``; ``doctor(run_dir="/proc/run").of_level("problem") ->
    [Finding("problem", "run directory", "cannot write to /proc: …")]``

    Opens this process's devices, and where `config.distributed` is enabled it joins the other
    processes: start it on every host, as a run.

    Args:
        config: the devices that a run will ask for; None for all there are.
        run_dir: where a run will write, local or gs://; None leaves this out. What fits on the disk
            is counted in checkpoints of BERT-Base.

    Returns:
        What was found. A problem is a finding and never an exception.
    """
    return DoctorReport(tuple(look_at_machine(config or MeshSection(), run_dir=run_dir)))


def look_at_machine(
    section: MeshSection,
    *,
    run_dir: str | None = None,
    checkpoint_bytes: Callable[[], int | None] = lambda: None,
) -> Iterator[Finding]:
    """Yields what `doctor` finds.

    `run_dir` None leaves that out; `checkpoint_bytes` returns the size of one checkpoint, or None.
    """
    yield from check_versions()
    yield from check_memory()
    yield from check_coordinator(section.distributed)
    with doing("starting JAX", at_once=True):
        from bert_jax.diagnostics.devices import check_devices

        devices = list(check_devices(section))
    yield from devices
    if run_dir is not None:
        from bert_jax.diagnostics.storage import check_run_dir

        yield from check_run_dir(run_dir, checkpoint_bytes=checkpoint_bytes())


def look_at_config(config: RunConfig) -> Iterator[Finding]:
    """Yields what is found of all that a run's configuration asks for: machine, inputs, disk."""
    problems = False
    # Opens the tokenizer, once for both that ask.
    architecture = functools.cache(functools.partial(_architecture, config))
    checkpoint_bytes = functools.partial(_checkpoint_bytes, config, architecture=architecture)
    for finding in look_at_machine(
        config.mesh, run_dir=config.run_dir, checkpoint_bytes=checkpoint_bytes
    ):
        problems |= finding.level == "problem"
        yield finding
    yield from _inputs(config)
    if not problems and (step := _train_step(config, architecture=architecture)) is not None:
        from bert_jax.diagnostics.devices import check_attention, check_kernels

        facts = {"architecture": step.architecture, "longest": step.longest, "mesh": config.mesh}
        yield check_attention(step.execution, **facts)
        yield check_kernels(step.execution, **facts, pretraining=config.finetune is None)


def look_at_run(run_dir: str) -> Iterator[Finding]:
    """Yields what is whole and what is damaged in a run directory.

    Looks at every file of its checkpoints, its settings, metrics and datasets; changes nothing:
    ``list(look_at_run("runs/base"))[0] -> Finding("problem", "checkpoint 4000", "params/d/1f… is
    missing")``

    Args:
        run_dir: of `pretrain`, `finetune` or `import`, local or gs://.
    """
    with doing("starting JAX", at_once=True):
        from bert_jax.diagnostics.run_directory import check_run
    yield from check_run(run_dir)


def _inputs(config: RunConfig) -> Iterator[Finding]:
    from bert_jax.diagnostics.inputs import check_inputs, finetuning_inputs, pretraining_inputs

    if config.train is not None and config.tokenizer is not None:
        yield from check_inputs(
            pretraining_inputs(
                tokenizer=config.tokenizer,
                model=config.model,
                train=config.train,
                optimizer=config.optimizer,
            )
        )
    if config.finetune is not None:
        yield from check_inputs(finetuning_inputs(config.finetune))


class _TrainStep(NamedTuple):
    """What decides which kernels a train step has."""

    execution: Execution
    architecture: Architecture
    longest: int  # tokens of the longest rows


def _train_step(
    config: RunConfig, *, architecture: Callable[[], Architecture | None]
) -> _TrainStep | None:
    """Returns that of a configuration.

    None: it trains nothing, its origin is no run directory, or `check_inputs` says why not.
    """
    if (section := config.finetune) is not None:
        from bert_jax.runs.directory import open_run

        try:
            origin = open_run(section.init_from)
        except UserError:
            return None
        execution = section.executed(origin.model.execution)
        return _TrainStep(execution, origin.architecture, section.max_length)
    if config.model is None or config.train is None or (pretrained := architecture()) is None:
        return None
    longest = max(phase.seq_length for phase in config.train.phases)
    return _TrainStep(config.model.execution, pretrained, longest)


def _architecture(config: RunConfig) -> Architecture | None:
    """Returns what is pretrained; None: `check_inputs` says why not."""
    from bert_jax.model.config import resolve_architecture
    from bert_jax.text import load_tokenizer

    if config.model is None or config.tokenizer is None:
        return None
    try:
        vocab_size = load_tokenizer(config.tokenizer).vocab_size
        return resolve_architecture(config.model, vocab_size=vocab_size)
    except UserError:
        return None


def _checkpoint_bytes(
    config: RunConfig, *, architecture: Callable[[], Architecture | None]
) -> int | None:
    """Returns the size of one checkpoint: parameters and two moments; None if it is not known."""
    import jax

    from bert_jax.model.bert import bert_builder
    from bert_jax.runs.directory import open_run
    from bert_jax.train.state import define_model

    try:
        if config.finetune is not None:
            build = open_run(config.finetune.init_from).build
        elif config.model is not None and (pretrained := architecture()) is not None:
            build = bert_builder(pretrained, config.model.execution, config.model.heads)
        else:
            return None
    except UserError:  # `check_inputs` says it
        return None
    leaves = jax.tree.leaves(define_model(build).params)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) * 3
