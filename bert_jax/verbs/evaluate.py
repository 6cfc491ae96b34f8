"""`bert-jax evaluate`: the metrics of a checkpoint on held-out data."""

import functools

import jax
from rich.console import Console
from rich.table import Table

from bert_jax.errors import UserError
from bert_jax.inference.bucketed import check_batch_size
from bert_jax.narration import narrator_of
from bert_jax.parallel.section import MeshSection
from bert_jax.runs.evaluation import Evaluation, own_split, write_evaluation
from bert_jax.runs.open_checkpoints import no_ema
from bert_jax.runs.run_directory import open_run
from bert_jax.train.progress_display import format_scores
from bert_jax.verbs.same_command import join_same_command
from bert_jax.verbs.teachers import with_teacher_of_run
from bert_jax.workflows.finetuning_scores import evaluate_task
from bert_jax.workflows.pretraining_scores import evaluate_objective


def evaluate(
    run_dir: str,
    *,
    dataset: str | None = None,
    split: str | None = None,
    checkpoint: str = "auto",
    ema: bool = False,
    batch_size: int | None = None,
    mesh: MeshSection | None = None,
    console: Console | None = None,
) -> Evaluation:
    """Evaluates a run's checkpoint on every example once.

    Pretrained and imported runs use a dataset with fixed masks (15%). Fine-tuned runs use their
    task.

    Args:
        run_dir: run directory of `pretrain`, `import` or `finetune`.
        dataset: a dataset directory. Default: `train.evaluation.sets` or `dataset` of the run, or
            the dataset of its last phase.
        split: a split of the dataset. Default: "validation". For a task: "dev" or "test".
        checkpoint: `last`, `best`, a step, or `auto`. `auto` is the best checkpoint of a
            fine-tuned run, and the last checkpoint of any other run.
        ema: evaluate the moving average of the parameters (`train.ema`).
        batch_size: rows per batch; does not change the scores.
        mesh: devices to use. Default: all devices.
        console: console for the table.

    Returns:
        The scores. Also writes them to the run directory: to ``evaluation.json`` for the `auto`
        checkpoint on the run's own held-out split, otherwise to ``evaluations/``.

    Raises:
        UserError: the run, checkpoint, dataset or split does not exist, the batch size is invalid,
            or the scores cannot be written. Scores are printed before they are written.
    """
    check_batch_size(batch_size)
    arguments = {
        "run_dir": run_dir,
        "--dataset": dataset,
        "--split": split,
        "--checkpoint": checkpoint,
        "--ema": ema,
        "--batch-size": batch_size,
    }
    join_same_command("evaluate", mesh, arguments)
    run, console = with_teacher_of_run(open_run(run_dir)), console or Console()
    split = split or own_split(run)
    if run.is_fine_tuned:
        if ema:
            raise no_ema(run)
        if dataset is not None:
            raise UserError(
                "evaluate.dataset_of_task",
                f"found {dataset}, but {run_dir} is fine-tuned. Use `bert-jax predict`.",
                place="--dataset",
            )
        result = evaluate_task(
            run, role=split, checkpoint=checkpoint, batch_size=batch_size, mesh=mesh
        )
    else:
        result = evaluate_objective(
            run,
            dataset=dataset,
            split=split,
            checkpoint=checkpoint,
            ema=ema,
            batch_size=batch_size,
            mesh=mesh,
            say=functools.partial(console.print, markup=False, soft_wrap=True),
        )
    if jax.process_index() == 0:
        # An imported run has no dataset: treat any dataset as its own.
        own_data = dataset is None or not run.has("train")
        _show(result, console, ema=ema)  # before writing, which may fail
        selected = checkpoint == "auto"
        write_evaluation(run, result, selected=selected, own_data=own_data, ema=ema)
    return result


def _show(result: Evaluation, console: Console, *, ema: bool) -> None:
    step = f"step {result.step}" + ", moving average" * ema
    if not console.is_terminal:
        line = f"{step} {result.dataset} ({result.examples} examples): "
        narrator_of(console).say(line + format_scores(result.scores))
        return
    table = Table("metric", "value", title=f"{step}, {result.examples} examples")
    for name, value in result.scores.items():
        table.add_row(name, format_scores({name: value}).split()[1])
    console.print(table)
