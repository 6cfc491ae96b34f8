"""`bert-jax pretrain`: dataset → checkpoints, resuming by itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from etils import epath
from rich.console import Console

from bert_jax.config import RunConfig, need, under
from bert_jax.data.loader import Loader, evaluation_batches
from bert_jax.data.records import Dataset, open_dataset
from bert_jax.errors import UserError
from bert_jax.model.config import Architecture, resolve_architecture
from bert_jax.optim.optimizer import make_optimizer
from bert_jax.optim.schedule import join
from bert_jax.parallel.mesh import Share, initialise, make_mesh, process_share
from bert_jax.parallel.rules import check_divides
from bert_jax.task import Task
from bert_jax.text import Tokenizer, load_tokenizer
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.job import Job, Phase, check_batches
from bert_jax.train.loop import Outcome, train
from bert_jax.train.plateau import PATIENCE_STEPS, Plateau
from bert_jax.train.progress import Progress
from bert_jax.train.sections import CheckpointSection, PhaseSection, stretches
from bert_jax.train.step import RngName
from bert_jax.train.writer import NoWriter, RunWriter, Writer
from bert_jax.verbs.run_dir import CHECKPOINTS, claim_run, make_task, open_run, write_run

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
    schedule = join(stretches(section, config.optimizer))
    initialise(config.mesh)
    mesh = make_mesh(config.mesh)
    tokenizer = load_tokenizer(need(config.tokenizer, "tokenizer", "pretrain"))
    architecture = resolve_architecture(
        need(config.model, "model", "pretrain"), vocab_size=tokenizer.vocab_size
    )
    check_divides(mesh, "heads", architecture.num_attention_heads, key="mesh.tensor")
    check_batches(section, mesh)
    task = make_task(config, architecture, tokenizer)
    share = process_share(mesh)
    phases, fingerprints = [], {}
    for index, phase in enumerate(section.phases):
        key = f"train.phases.{index}"
        data = _open(phase, tokenizer, architecture, key=key)
        fingerprints[phase.dataset] = data.fingerprint
        with under(key, PhaseSection):
            phases.append(
                _phase(
                    config, phase, data, index=index, task=task, share=share, tokenizer=tokenizer
                )
            )
    root = claim_run(config, architecture=architecture, tokenizer=tokenizer)
    write_config = functools.partial(
        write_run,
        root,
        config,
        run_dir=str(root),
        architecture=architecture,
        tokenizer=tokenizer,
        origin={"datasets": fingerprints, "init_from": init_from},
    )
    for phase, opened in zip(section.phases, phases, strict=True):
        if section.evaluation is not None and opened.evaluate is None:
            console.print(f"{phase.dataset} has no validation split: no evaluation", markup=False)
    with Checkpointer(
        root / CHECKPOINTS, section.checkpoint, best_metric=task.best_metric
    ) as checkpointer:
        job = Job(
            task=task,
            phases=phases,
            optimizer=lambda model: make_optimizer(config.optimizer, schedule, model.axes),
            schedule=schedule,
            section=section,
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
            make_writer=functools.partial(_make_writer, root),
            make_progress=functools.partial(_make_progress, console),
        )


def choose_rng(name: str) -> RngName:
    """Returns the generator of dropout bits.

    On a TPU the hardware's, since threefry costs more there than the matrix products around it;
    elsewhere threefry, which gives the same bits on every mesh.
    """
    if name == "auto":
        return "unsafe_rbg" if jax.default_backend() == "tpu" else "threefry2x32"
    return name  # pyright: ignore[reportReturnType]


def _open(
    phase: PhaseSection, tokenizer: Tokenizer, architecture: Architecture, *, key: str
) -> Dataset:
    dataset = open_dataset(phase.dataset, TRAIN)
    if dataset.provenance.tokenizer_hash != tokenizer.hash:
        raise UserError(
            f"{key}.dataset: {phase.dataset} was made with another tokenizer "
            f"({dataset.provenance.tokenizer_hash[:12]}) than the one given ({tokenizer.hash[:12]})"
        )
    if phase.seq_length > architecture.max_position_embeddings:
        raise UserError(
            f"{key}.seq_length: found {phase.seq_length}, allowed: up to the model's "
            f"{architecture.max_position_embeddings} positions (model.max_position_embeddings)"
        )
    return dataset


def _phase(
    config: RunConfig,
    section: PhaseSection,
    dataset: Dataset,
    *,
    index: int,
    task: Task,
    share: Share,
    tokenizer: Tokenizer,
) -> Phase:
    make_features = functools.partial(
        task.features, seq_length=section.seq_length, max_predictions=section.max_predictions
    )
    total_steps = need(config.train, "train", "pretrain").total_steps
    loader = Loader(
        dataset=dataset,
        features=make_features(evaluation=False),
        batch_size=section.batch_size,
        seed=config.seed,
        phase=index,
        process_index=share.index,
        process_count=share.count,
        section=config.loader,
    )
    return Phase(
        section=section,
        loader=loader,
        flops_per_row=task.flops_per_row(
            seq_length=section.seq_length, max_predictions=section.max_predictions
        ),
        evaluate=_validation(config, section, make_features(evaluation=True), dataset, share=share),
        plateau=Plateau(
            unigram_entropy=dataset.provenance.corpus.unigram_entropy,
            vocab_size=tokenizer.vocab_size,
            patience=min(PATIENCE_STEPS, total_steps // 4),
        ),
    )


def _validation(
    config: RunConfig, section: PhaseSection, features: Any, dataset: Dataset, *, share: Share
) -> Callable[[], Any] | None:
    evaluation = need(config.train, "train", "pretrain").evaluation
    if evaluation is None or VALIDATION not in dataset.provenance.splits:
        return None
    return functools.partial(
        evaluation_batches,
        open_dataset(section.dataset, VALIDATION),
        features,
        batch_size=evaluation.batch_size or section.batch_size,
        seed=config.seed,
        limit=evaluation.examples,
        process_index=share.index,
        process_count=share.count,
    )


def _params_of(directory: str, abstract_params: Any) -> Any:
    run = open_run(directory)
    with Checkpointer(run.directory / CHECKPOINTS, CheckpointSection()) as source:
        step = source.latest_step()
        if step is None:
            raise UserError(f"--init-from: {directory} has no checkpoint")
        return source.restore_params(abstract_params, step=step)


def _make_writer(root: epath.Path, step: int) -> Writer:
    return RunWriter(root, resume_step=step) if jax.process_index() == 0 else NoWriter()


def _make_progress(console: Console, first_step: int, total_steps: int) -> Progress:
    if jax.process_index() != 0:
        console = Console(quiet=True)
    return Progress(console, first_step=first_step, total_steps=total_steps)
