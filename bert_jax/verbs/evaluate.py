"""`bert-jax evaluate`: the metrics of a checkpoint on the validation split."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import jax
import optax
from rich.console import Console
from rich.table import Table

from bert_jax.config import need
from bert_jax.data.loader import evaluation_batches
from bert_jax.data.records import open_dataset
from bert_jax.errors import UserError, did_you_mean
from bert_jax.optim.optimizer import MomentsState, find_moments, make_optimizer
from bert_jax.parallel.mesh import MeshSection, initialise, make_mesh, process_share
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.compiled import compile_evaluation
from bert_jax.train.loop import evaluate as run_evaluation
from bert_jax.train.progress import format_scores
from bert_jax.train.sections import CheckpointSection
from bert_jax.train.state import ModelDefinition, abstract_params, abstract_state, define_model
from bert_jax.verbs.run_dir import CHECKPOINTS, Run, open_run

EVALUATION: Final = "evaluation.json"


class LoadedParams(NamedTuple):
    """Parameters of one checkpoint on a mesh."""

    step: int
    model: ModelDefinition
    params: Any
    mesh: jax.sharding.Mesh


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
    split: str = "validation",
    checkpoint: str = "last",
    batch_size: int | None = None,
    mesh: MeshSection | None = None,
    console: Console | None = None,
) -> Evaluation:
    """Evaluates a run's checkpoint, every example once, masks drawn once and for all at 15%.

    Args:
        run_dir: of `pretrain`.
        dataset: a dataset directory; the run's last phase's where none is given.
        split: of that dataset.
        checkpoint: `last`, `best`, or a step.
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
    task = run.task
    loaded = load_params(run, checkpoint=checkpoint, mesh=mesh)
    section = need(run.config.train, "train", "evaluate")
    phase = section.phases[-1]
    path = dataset or phase.dataset
    data = open_dataset(path, split)
    share = process_share(loaded.mesh)
    batches = functools.partial(
        evaluation_batches,
        data,
        task.features(
            seq_length=phase.seq_length, max_predictions=phase.max_predictions, evaluation=True
        ),
        batch_size=batch_size or phase.batch_size,
        seed=run.config.seed,
        limit=None,
        process_index=share.index,
        process_count=share.count,
    )
    with jax.set_mesh(loaded.mesh):
        step_fn = compile_evaluation(task, define_model(task.build), loaded.mesh)
        totals = run_evaluation(step_fn, loaded.params, batches, loaded.mesh, shares=share.count)
    result = Evaluation(loaded.step, path, len(data), task.score(totals))
    if jax.process_index() == 0:
        (run.directory / EVALUATION).write_text(json.dumps(result._asdict(), indent=2))
        _show(result, console or Console())
    return result


def load_params(
    run: Run, *, checkpoint: str, mesh: MeshSection | None = None, one_device: bool = False
) -> LoadedParams:
    """Reads the parameters of one of a run's checkpoints onto this machine's devices.

    Args:
        run: opened.
        checkpoint: `last`, `best`, or a step.
        mesh: devices to use; None for all there are, whatever the run was trained on.
        one_device: keep one copy on the first device; on several, each could hold a whole one.

    Raises:
        UserError: no such checkpoint.
    """
    devices = mesh or MeshSection()
    initialise(devices)
    on = make_mesh(devices, jax.devices()[:1] if one_device else None)
    with Checkpointer(run.directory / CHECKPOINTS, CheckpointSection()) as checkpointer:
        step = _find_step(checkpointer, checkpoint, where=str(run.directory))
        model = define_model(run.build)
        params = checkpointer.restore_params(abstract_params(model, on), step=step)
    return LoadedParams(step, model, params, on)


def load_moments(run: Run, loaded: LoadedParams) -> MomentsState | None:
    """Reads the moments that belong to parameters; None where they are not the release's Adam's.

    Args:
        run: opened.
        loaded: its parameters.
    """
    section = run.config.optimizer
    with Checkpointer(run.directory / CHECKPOINTS, CheckpointSection()) as checkpointer:
        if section.name != "adamw" or not checkpointer.has_optimizer(loaded.step):
            return None
        # The learning rate is no part of the state.
        optimizer = make_optimizer(section, optax.constant_schedule(0.0), loaded.model.axes)
        abstract = abstract_state(loaded.model, optimizer, loaded.mesh)
        restored = checkpointer.restore_optimizer(abstract, step=loaded.step)
    return find_moments(restored.opt_state)


def _find_step(checkpointer: Checkpointer, asked: str, *, where: str) -> int:
    steps = checkpointer.all_steps()
    if not steps:
        raise UserError(f"{where}: no checkpoint in it yet")
    if asked == "last":
        return steps[-1]
    if asked == "best":
        best = checkpointer.best_step()
        if best is None:
            raise UserError(f"{where}: no checkpoint was evaluated, so none is the best")
        return best
    if asked.isdigit() and int(asked) in steps:
        return int(asked)
    allowed = ["last", "best", *map(str, steps)]
    near = did_you_mean(asked, allowed)
    raise UserError(f'--checkpoint: found "{asked}", allowed: {", ".join(allowed)}{near}')


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
