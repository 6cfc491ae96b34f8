"""The settings and the data of a fine-tuned run."""

from collections.abc import Mapping

from bert_jax.data.memory_table import MemoryTable
from bert_jax.errors import UserError
from bert_jax.narration import doing
from bert_jax.runs.evaluation import read_evaluation
from bert_jax.runs.run_directory import Run
from bert_jax.section import under
from bert_jax.tasks.family import DataRequest, Family
from bert_jax.tasks.section import FinetuneSection, TaskSection


def section_of(run: Run) -> FinetuneSection:
    """Returns a run's fine-tuning settings. Raises UserError if the run was not fine-tuned."""
    if not run.is_fine_tuned:
        raise UserError(
            "run.not_fine_tuned",
            "not a fine-tuned run. Set finetune.init_from to this directory and fine-tune it.",
            place=run.directory,
        )
    return run.section("finetune", FinetuneSection, verb="predict")


def open_data(
    run: Run,
    *,
    roles: tuple[str, ...],
    step: int,
    input: str | MemoryTable | None = None,
    task: TaskSection | None = None,
) -> Family:
    """Opens splits of a fine-tuned run's task, with the model's labels.

    See `DataRequest` for `roles` and `input`. A tuned threshold comes from the dev evaluation of
    the checkpoint at `step`. `task` overrides the run's section. Raises UserError if a file is
    missing or malformed, or if the task needs a threshold and there is no such evaluation.
    """
    section = section_of(run)
    task = task or section.task
    tuned: Mapping[str, float] = {}
    if "dev" not in roles:  # dev tunes its own threshold
        evaluation = read_evaluation(run, step=step)
        if evaluation is not None:
            tuned = evaluation.scores
        elif task.tunes_threshold:
            raise UserError(
                "squad.no_threshold",
                f"not tuned. Run `bert-jax evaluate {run.directory} --checkpoint {step}` first.",
                place="finetune.task.null_threshold",
            )
    request = DataRequest(run.tokenizer, section.max_length, section.split_seed, roles, input)
    with under("finetune", FinetuneSection), doing("reading and encoding the task's files"):
        heads = run.heads
        return task.open(
            request._replace(
                labels=heads.labels,
                problem=heads.problem,
                tuned=tuned,
                text_head=heads.text_head,
                split_punctuation=heads.split_punctuation,
            )
        )
