"""`bert-jax pretrain`: dataset → checkpoints, resuming by itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from rich.console import Console

from bert_jax.config import RunConfig
from bert_jax.data.host_share import HostShare
from bert_jax.data.loader.loader import Loader, evaluation_batches
from bert_jax.errors import UserError
from bert_jax.model.config import Architecture, resolve_architecture
from bert_jax.objectives.example_source import ExampleSource, open_source
from bert_jax.objectives.registry import make_objective
from bert_jax.optim.optimizer import make_optimizer
from bert_jax.optim.schedule import join
from bert_jax.parallel.mesh import initialise, make_mesh, process_share
from bert_jax.parallel.rules import check_divides
from bert_jax.runs.directory import CHECKPOINTS, claim_run, open_run, write_run
from bert_jax.runs.reporting import choose_rng, make_progress, make_writer
from bert_jax.section import need, under
from bert_jax.task import Objective
from bert_jax.text import Tokenizer, load_tokenizer
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.loop import Outcome, make_evaluation, train
from bert_jax.train.plateau import PATIENCE_STEPS, Plateau
from bert_jax.train.sections import CheckpointSection, PhaseSection, schedule_segments
from bert_jax.train.spec import Job, Pace, Phase, Ranking, check_batches
from bert_jax.train.state import ModelDefinition, abstract_like, define_model

TRAIN = "train"
VALIDATION = "validation"


def pretrain(
    config: RunConfig, *, init_from: str | None = None, console: Console | None = None
) -> Outcome:
    """Pretrains as a configuration says, from the run's last checkpoint where there is one.

    Args:
        config: needs `run_dir`, `tokenizer`, `model` and `train`.
        init_from: a run directory whose parameters a fresh run starts from, with a fresh
            optimizer, schedule and data position. A run that already has checkpoints resumes.
        console: where progress is shown; standard output where none is given.

    Returns:
        The step reached, whether a signal stopped the run, and the last evaluation.

    Raises:
        UserError: the configuration does not fit the data, the devices or the run directory.
        RunStopped: the loss was not finite.
    """
    console = console or Console()
    section = need(config.train, "train", "pretrain")
    schedule = join(schedule_segments(section, config.optimizer))
    initialise(config.mesh)
    mesh = make_mesh(config.mesh)
    tokenizer = load_tokenizer(need(config.tokenizer, "tokenizer", "pretrain"))
    model_section = need(config.model, "model", "pretrain")
    architecture = resolve_architecture(model_section, vocab_size=tokenizer.vocab_size)
    check_divides(mesh, "heads", architecture.num_attention_heads, key="mesh.tensor")
    check_batches(section, mesh)
    task = make_objective(
        config.objective,
        architecture=architecture,
        execution=model_section.execution,
        tokenizer=tokenizer,
    )
    model = define_model(task.build)
    share = process_share(mesh)
    phases, fingerprints = [], {}
    for index, phase in enumerate(section.phases):
        key = f"train.phases.{index}"
        source = _open(config, phase, tokenizer, architecture, key=key)
        fingerprints[phase.dataset] = source.dataset.fingerprint
        with under(key, PhaseSection):
            phases.append(
                _phase(
                    config,
                    phase,
                    source,
                    index=index,
                    task=task,
                    model=model,
                    mesh=mesh,
                    tokenizer=tokenizer,
                )
            )
    root = claim_run(
        need(config.run_dir, "run_dir", "pretrain"), architecture=architecture, tokenizer=tokenizer
    )
    write_config = functools.partial(
        write_run,
        root,
        config.model_dump(mode="json"),
        run_dir=str(root),
        model=model_section,
        architecture=architecture,
        tokenizer=tokenizer,
        origin={"datasets": fingerprints, "init_from": init_from},
    )
    for phase, opened in zip(section.phases, phases, strict=True):
        if section.evaluation is not None and opened.evaluate is None:
            console.print(f"{phase.dataset} has no validation split: no evaluation", markup=False)
    with Checkpointer(root / CHECKPOINTS, section.checkpoint) as checkpointer:
        job = Job(
            task=task,
            model=model,
            phases=phases,
            optimizer=make_optimizer(config.optimizer, schedule, model.axes),
            schedule=schedule,
            pace=Pace(
                log_every=section.log_every,
                evaluate_every=section.evaluation.every if section.evaluation else None,
                checkpoint_every=section.checkpoint.every,
            ),
            ranking=Ranking(metric=task.best_metric, larger_is_better=False),
            rng=choose_rng(section.rng),
            mesh=mesh,
            share=share,
            seed=config.seed,
            run_dir=root,
            checkpointer=checkpointer,
            initial_params=functools.partial(_params_of, init_from) if init_from else None,
            write_config=write_config if jax.process_index() == 0 else lambda: None,
        )
        return train(
            job,
            make_writer=functools.partial(make_writer, root),
            make_progress=functools.partial(make_progress, console),
        )


def _open(
    config: RunConfig,
    phase: PhaseSection,
    tokenizer: Tokenizer,
    architecture: Architecture,
    *,
    key: str,
) -> ExampleSource:
    source = open_source(
        phase.dataset,
        TRAIN,
        objective=config.objective,
        tokenizer=tokenizer,
        key=f"{key}.dataset",
    )
    if phase.seq_length > architecture.max_position_embeddings:
        raise UserError(
            f"{key}.seq_length: found {phase.seq_length}, allowed: up to the model's "
            f"{architecture.max_position_embeddings} positions (model.max_position_embeddings)"
        )
    return source


def _phase(
    config: RunConfig,
    section: PhaseSection,
    source: ExampleSource,
    *,
    index: int,
    task: Objective,
    model: ModelDefinition,
    mesh: jax.sharding.Mesh,
    tokenizer: Tokenizer,
) -> Phase:
    share = process_share(mesh)
    features = source.features(
        task,
        seq_length=section.seq_length,
        max_predictions=section.max_predictions,
        evaluation=False,
    )
    total_steps = need(config.train, "train", "pretrain").total_steps
    if section.packing is not None:
        features = features.packed(section.packing.max_examples)
    loader = Loader(
        source.dataset,
        features,
        batch_size=section.batch_size,
        seed=config.seed,
        phase=index,
        share=share,
        section=config.loader,
    )
    open_batches = _validation(config, section, source, task, tokenizer, share=share)
    return Phase(
        steps=section.steps,
        batch_size=section.batch_size,
        accumulation=section.accumulation,
        loader=loader,
        shapes=1,
        flops_per_row=task.flops_per_row(
            seq_length=section.seq_length, max_predictions=features.max_predictions
        ),
        evaluate=open_batches
        and make_evaluation(task, model, open_batches, mesh, shares=share.count),
        plateau=Plateau(
            unigram_entropy=source.unigram_entropy,
            vocab_size=tokenizer.vocab_size,
            patience=min(PATIENCE_STEPS, total_steps // 4),
        ),
    )


def _validation(
    config: RunConfig,
    section: PhaseSection,
    source: ExampleSource,
    task: Objective,
    tokenizer: Tokenizer,
    *,
    share: HostShare,
) -> Callable[[], Any] | None:
    evaluation = need(config.train, "train", "pretrain").evaluation
    if evaluation is None or VALIDATION not in source.splits:
        return None
    held_out = open_source(
        section.dataset,
        VALIDATION,
        objective=config.objective,
        tokenizer=tokenizer,
        key="dataset",
    )
    return functools.partial(
        evaluation_batches,
        held_out.dataset,
        held_out.features(
            task,
            seq_length=section.seq_length,
            max_predictions=section.max_predictions,
            evaluation=True,
        ),
        batch_size=evaluation.batch_size or section.batch_size,
        seed=config.seed,
        limit=evaluation.examples,
        share=share,
    )


def _params_of(directory: str, fresh: Any) -> Any:
    run = open_run(directory)
    with Checkpointer(run.directory / CHECKPOINTS, CheckpointSection()) as source:
        step = source.latest_step()
        if step is None:
            raise UserError(f"--init-from: {directory} has no checkpoint")
        return source.restore_params(jax.tree.map(abstract_like, fresh), step=step)
