"""`bert-jax evaluate`: the metrics of a checkpoint on the validation split."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import NamedTuple

import jax
from rich.console import Console
from rich.table import Table

from bert_jax.data.loader.loader import evaluation_batches
from bert_jax.errors import UserError
from bert_jax.files.small import write_whole
from bert_jax.objectives.example_source import open_source
from bert_jax.objectives.registry import objective_of
from bert_jax.objectives.section import ObjectiveSection
from bert_jax.parallel.mesh import process_share
from bert_jax.parallel.section import MeshSection
from bert_jax.runs.directory import Run, open_run
from bert_jax.runs.parameters import load_params
from bert_jax.tasks.training.evaluation import EVALUATION, evaluate_task
from bert_jax.train.compiled import compile_evaluation
from bert_jax.train.loop import evaluate as run_evaluation
from bert_jax.train.progress_display import format_scores
from bert_jax.train.sections import TrainSection
from bert_jax.train.state import define_model


class Evaluation(NamedTuple):
    """Metrics of one checkpoint on one dataset."""

    step: int
    dataset: str
    examples: int
    scores: Mapping[str, float]


def evaluate(
    run_dir: str,
    *,
    dataset: str | None = None,
    split: str | None = None,
    checkpoint: str = "auto",
    batch_size: int | None = None,
    mesh: MeshSection | None = None,
    console: Console | None = None,
) -> Evaluation:
    """Evaluates a run's checkpoint, every example once.

    A pretrained run's on a dataset, masks drawn once and for all at 15%; a fine-tuned run's on its
    task.

    Args:
        run_dir: of `pretrain` or `finetune`.
        dataset: a dataset directory; the run's last phase's where none is given.
        split: of that dataset, "validation" where none is given; of a task "dev" or "test".
        checkpoint: `last`, `best`, a step, or `auto`: the best of a fine-tuned run, else the last.
        batch_size: rows at a time; it changes no figure.
        mesh: other devices than the run was configured for.
        console: where the table is shown.

    Returns:
        Step, dataset, number of examples and scores; the same goes to ``evaluation.json`` in the
        run directory.

    Raises:
        UserError: no such run, checkpoint, dataset or split.
    """
    run = open_run(run_dir)
    if not run.is_fine_tuned:
        result = _evaluate_objective(
            run,
            dataset=dataset,
            split=split or "validation",
            checkpoint=checkpoint,
            batch_size=batch_size,
            mesh=mesh,
        )
    else:
        if dataset is not None:
            raise UserError(
                f"--dataset: found {dataset}, but {run_dir} is fine-tuned; allowed: none "
                f"(`bert-jax predict --input` takes other files)"
            )
        step, examples, scores = evaluate_task(
            run, role=split or "dev", checkpoint=checkpoint, batch_size=batch_size, mesh=mesh
        )
        result = Evaluation(step, split or "dev", examples, scores)
    if jax.process_index() == 0:
        write_whole(run.directory / EVALUATION, json.dumps(result._asdict(), indent=2).encode())
        _show(result, console or Console())
    return result


def _evaluate_objective(
    run: Run,
    *,
    dataset: str | None,
    split: str,
    checkpoint: str,
    batch_size: int | None,
    mesh: MeshSection | None,
) -> Evaluation:
    task = objective_of(run)
    loaded = load_params(run, checkpoint=checkpoint, mesh=mesh)
    section = run.section("train", TrainSection, verb="evaluate")
    phase = section.phases[-1]
    path = dataset or phase.dataset
    source = open_source(
        path,
        split,
        objective=run.section("objective", ObjectiveSection, verb="evaluate"),
        tokenizer=run.tokenizer,
        key="dataset",
    )
    share = process_share(loaded.mesh)
    batches = functools.partial(
        evaluation_batches,
        source.dataset,
        source.features(
            task,
            seq_length=phase.seq_length,
            max_predictions=phase.max_predictions,
            evaluation=True,
        ),
        batch_size=batch_size or phase.batch_size,
        seed=run.seed,
        limit=None,
        share=share,
    )
    with jax.set_mesh(loaded.mesh):
        step_fn = compile_evaluation(task, define_model(task.build), loaded.mesh)
        totals = run_evaluation(step_fn, loaded.params, batches, loaded.mesh, shares=share.count)
    return Evaluation(loaded.step, path, len(source.dataset), task.score(totals))


def _show(result: Evaluation, console: Console) -> None:
    if not console.is_terminal:
        console.print(
            f"step {result.step} {result.dataset} ({result.examples} examples): "
            f"{format_scores(result.scores)}",
            soft_wrap=True,
        )
        return
    table = Table("metric", "value", title=f"step {result.step}, {result.examples} examples")
    for name, value in result.scores.items():
        table.add_row(name, format_scores({name: value}).split()[1])
    console.print(table)
