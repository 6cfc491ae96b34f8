"""Evaluation of a fine-tuned run: scores, predictions and the report."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jax
import pyarrow as pa
from etils import epath
from pyarrow import csv as pa_csv
from rich.console import Console

from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.inference.execution import forward_model_of_run
from bert_jax.narration import doing, narrator_of
from bert_jax.parallel.mesh import open_mesh
from bert_jax.parallel.same_settings import require_same
from bert_jax.parallel.section import MeshSection
from bert_jax.runs.evaluation import Evaluation, write_evaluation
from bert_jax.runs.open_checkpoints import LoadedParams, load_params
from bert_jax.runs.run_directory import Run
from bert_jax.tasks.data_of_run import open_data, section_of
from bert_jax.tasks.family import Family, Record
from bert_jax.tasks.predictor import Predictor, score_splits
from bert_jax.tasks.scores import Baseline, baseline_of
from bert_jax.tasks.section import TaskSection
from bert_jax.train.progress_display import format_scores, warn_aloud
from bert_jax.train.state import gather_whole
from bert_jax.workflows.finetuning_report import write_report

ROLES: Final = ("dev", "test")
PREDICTIONS: Final = "predictions"
BASE_WIDTH: Final = 512  # minimum hidden size at which the BERT paper's learning rates work


def conclude(
    run: Run,
    family: Family,
    predictor: Predictor,
    *,
    check_lock: Callable[[], None],
    console: Console,
    seeds: Sequence[Mapping[str, Any]] = (),
) -> Evaluation:
    """Evaluates a run's best checkpoint, and writes scores, dev predictions and the report.

    `family` must have the dev splits. `seeds` are the results of a sweep, for the report. Only the
    first process writes files and prints scores. If another process has taken the run directory,
    `check_lock` raises RunStopped before anything is written.
    """
    with doing("predicting dev with the best checkpoint"):
        loaded = load_params(run, checkpoint="auto", mesh=predictor.mesh)
        records = {name: predictor(loaded.params, family.splits[name]) for name in family.dev}
        predict, views = functools.partial(predictor, loaded.params), {}
        if (view := family.view) is not None:
            views = {
                name: view(family.splits[name], found, predict) for name, found in records.items()
            }
    evaluation, baseline = _evaluation(loaded, family, records, role="dev")
    check_lock()
    loaded = loaded._replace(params=gather_whole(loaded.params))  # one process writes the report
    if jax.process_index() == 0:
        for name, found in records.items():
            write_records(run.directory / PREDICTIONS / f"{name}.jsonl", found)
        write_evaluation(run, evaluation, selected=True, own_data=True)
        warning = _warning(run, baseline)
        with doing("writing the report"):
            write_report(
                run,
                family,
                loaded,
                records=records,
                views=views,
                seeds=seeds,
                warning=warning,
            )
        narrator_of(console).say(f"best: step {loaded.step}: {format_scores(evaluation.scores)}")
        if warning is not None:
            warn_aloud(warning)
    return evaluation


def _evaluation(
    loaded: LoadedParams, family: Family, records: Mapping[str, Sequence[Record]], *, role: str
) -> tuple[Evaluation, Baseline | None]:
    """Returns the scores of splits, and the baseline of the first split."""
    baseline = baseline_of(family, next(iter(records.values())))
    examples = sum(split.examples for name, split in family.splits.items() if name.startswith(role))
    constant, failure = (baseline.constant, baseline.failure) if baseline else (None, None)
    scores = score_splits(family, records)
    return Evaluation(loaded.step, role, role, examples, scores, constant, failure), baseline


def _warning(run: Run, baseline: Baseline | None) -> str | None:
    """Returns a warning with advice if the model learnt nothing, otherwise None."""
    if baseline is None or baseline.failure is None:
        return None
    metric, section = baseline.metric, section_of(run)
    reached = format_scores({metric: baseline.score})
    constant = format_scores({metric: baseline.constant}).removeprefix(f"{metric} ")
    only = "" if baseline.only is None else f"it predicts nothing but {baseline.only}; "
    usual = "2e-5 to 5e-5" if run.architecture.hidden_size >= BASE_WIDTH else "1e-4 to 1e-3"
    return (
        f"the model learnt nothing: {only}{reached}, best constant answer {constant}. Try another "
        f"finetune.optimizer.learning_rate (now {section.optimizer.learning_rate:g}; usual for "
        f"this size: {usual}), more finetune.epochs (now {section.epochs}), more rows or another "
        "seed"
    )


def evaluate_task(
    run: Run, *, role: str, checkpoint: str, batch_size: int | None, mesh: MeshSection | None
) -> Evaluation:
    """Evaluates a checkpoint of a fine-tuned run on its task.

    `role` is "dev", or "test" if the test files have labels. Scores do not depend on `batch_size`.
    Raises UserError if the role is unknown, or if a split has no labels.
    """
    if role not in ROLES:
        raise UserError.unknown("evaluate.task_split", role, ROLES, place="--split")
    loaded, family, predictor = open_predictor(
        run, roles=(role,), checkpoint=checkpoint, batch_size=batch_size, mesh=mesh
    )
    records = {name: predictor(loaded.params, split) for name, split in family.splits.items()}
    for name, found in records.items():
        if any(record.get("label") is None for record in found):
            raise UserError(
                "evaluate.no_labels", f"{name} has no labels. Use dev or predict.", place="--split"
            )
    evaluation, baseline = _evaluation(loaded, family, records, role=role)
    if jax.process_index() == 0 and (warning := _warning(run, baseline)):
        warn_aloud(warning)
    return evaluation


def open_predictor(
    run: Run,
    *,
    roles: tuple[str, ...],
    checkpoint: str,
    batch_size: int | None,
    mesh: MeshSection | None,
    input: str | None = None,
    task: TaskSection | None = None,
) -> tuple[LoadedParams, Family, Predictor]:
    """Returns a checkpoint, the family from `open_data`, and a predictor of its splits.

    Raises UserError if processes differ in checkpoint, tokenizer or data, or as `open_data`.
    """
    devices, section = open_mesh(mesh), section_of(run)
    define = functools.partial(forward_model_of_run, mesh=devices, longest=section.max_length)
    loaded = load_params(run, checkpoint=checkpoint, mesh=devices, define=define)
    family = open_data(run, roles=roles, step=loaded.step, input=input, task=task)
    model = {"step": loaded.step, "tokenizer": run.tokenizer.hash}
    require_same({"run_dir": model, "data": family.content})
    predictor = Predictor(
        loaded.model,
        loaded.mesh,
        batch_size=batch_size or section.microbatch,
        max_length=section.max_length,
        pad_id=run.tokenizer.special.pad,
        architecture=run.architecture,
    )
    return loaded, family, predictor


def write_records(path: epath.Path, records: Sequence[Record]) -> None:
    """Writes records as JSON lines."""
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    write_whole(path, "".join(lines))


def write_csv(path: epath.Path, table: pa.Table) -> None:
    """Writes a table as CSV, with quotes only where necessary."""
    sink = pa.BufferOutputStream()
    pa_csv.write_csv(table, sink, pa_csv.WriteOptions(quoting_style="needed"))
    write_whole(path, sink.getvalue().to_pybytes())
