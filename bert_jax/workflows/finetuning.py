"""One fine-tuning run, from its setup to its report."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from etils import epath
from rich.console import Console

from bert_jax.optim.finetuning import make_schedule
from bert_jax.parallel.mesh import process_share
from bert_jax.runs.evaluation import Evaluation
from bert_jax.runs.open_checkpoints import write_checkpoints
from bert_jax.runs.run_directory import open_run
from bert_jax.tasks.predictor import Predictor, score_splits
from bert_jax.train.checkpointer import Checkpointer
from bert_jax.train.frozen import load_frozen
from bert_jax.train.loop import Outcome, train
from bert_jax.train.sections import CheckpointSection
from bert_jax.train.spec import CheckpointSelection, Intervals, Phase, TrainSpec
from bert_jax.train.step import StepSpec
from bert_jax.workflows.finetuning_scores import conclude
from bert_jax.workflows.finetuning_setup import TrainingSetup, origin_params

LOGGED: Final = 10  # least number of training losses of a run in the report, if it has the steps


class FinishedRun(NamedTuple):
    """The result of a fine-tuning run."""

    outcome: Outcome
    best: Evaluation | None  # None if a signal stopped the run


def run_finetuning(
    prepared: TrainingSetup,
    root: epath.Path,
    predictor: Predictor,
    *,
    check_lock: Callable[[], None],
    console: Console,
) -> FinishedRun:
    """Trains to the end, and writes scores, predictions and the report.

    `root` comes from `claim`. `predictor` predicts the dev splits; all runs of a sweep share it.
    `check_lock` raises RunStopped if another process has taken `root`. Raises Diverged because of
    bad steps (see `bert_jax.train.bad_steps`), and RunStopped for other reasons.
    """
    with write_checkpoints(root, CheckpointSection(keep_last=1)) as checkpoints:
        spec = _train_spec(prepared, root, checkpoints, predictor, check_lock=check_lock)
        outcome = train(spec, console=console)
    if outcome.interrupted:
        return FinishedRun(outcome, None)
    best = conclude(
        open_run(root), prepared.family, predictor, check_lock=check_lock, console=console
    )
    return FinishedRun(dataclasses.replace(outcome, scores=best.scores), best)


def _train_spec(
    prepared: TrainingSetup,
    root: epath.Path,
    checkpoints: Checkpointer,
    predictor: Predictor,
    *,
    check_lock: Callable[[], None],
) -> TrainSpec:
    settings, section, family = prepared.settings, prepared.section, prepared.family
    batches = prepared.batches(seed=settings.seed, share=process_share(prepared.mesh))
    steps = batches.plan.steps
    every = max(1, steps // section.evaluations_per_epoch)

    def evaluate(params: Any, frozen: Any) -> dict[str, float]:
        del frozen
        dev = {name: predictor(params, family.splits[name]) for name in family.dev}
        return score_splits(family, dev)

    phase = Phase(
        step=StepSpec(task=prepared.task, model=prepared.model, optimizer=prepared.optimizer()),
        steps=steps * section.epochs,
        batch_size=section.batch_size,
        accumulation=prepared.accumulation,
        loader=batches,
        shapes=len(batches.plan.shapes),
        # FLOPs of a row of mean length.
        flops_per_row=len(family.splits["train"].row(0).sequences)
        * prepared.task.flops_per_row(seq_length=round(batches.plan.mean_length)),
        evaluate=evaluate,
        watch=None,
        validation=" ".join(prepared.content[name] for name in family.dev),
    )
    return TrainSpec(
        schedule=make_schedule(section.optimizer, total_steps=phase.steps),
        phases=[phase],
        intervals=Intervals(
            # Short runs have a curve in the report too.
            log_every=min(section.log_every, max(1, phase.steps // LOGGED)),
            evaluate_every=every,
            checkpoint_every=every,
            checksum_every=section.checksum_every,
            patience=section.patience,
        ),
        selection=CheckpointSelection(weights={family.best_metric: 1.0}, larger_is_better=True),
        mesh=prepared.mesh,
        seed=settings.seed,
        run_dir=root,
        checkpoints=checkpoints,
        check_lock=check_lock,
        initial_params=functools.partial(origin_params, prepared),
        write_config=functools.partial(
            prepared.write_run, root=root, origin=prepared.origin_record(root)
        ),
        allow_data_change=settings.allow_data_change,
        trackers=section.trackers,
        watchdog=section.watchdog,
        started=settings.started,
        bad_steps=section.bad_steps,
        task_facts={"class_weights": prepared.task.class_weights},
        frozen=load_frozen(prepared.task, prepared.mesh),
    )
