"""`bert-jax predict`: a fine-tuned run and a file → predictions, or a benchmark's files."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
from rich.console import Console

from bert_jax.data.row_errors import OnError
from bert_jax.errors import UserError, counted, one_of
from bert_jax.files.atomic import output_exists, require_other_file
from bert_jax.inference.bucketed import check_batch_size
from bert_jax.parallel.mesh import initialise
from bert_jax.parallel.section import MeshSection
from bert_jax.runs.lock import hold_output
from bert_jax.runs.run_directory import open_run
from bert_jax.tasks.data_of_run import section_of
from bert_jax.tasks.family import Family, Record, RowsSection
from bert_jax.tasks.labels import with_integers
from bert_jax.tasks.prediction_file import SUFFIXES, open_prediction_file
from bert_jax.tasks.predictor import score_splits
from bert_jax.tasks.section import require_base
from bert_jax.train.progress_display import format_scores
from bert_jax.verbs.same_command import join_same_command
from bert_jax.workflows.finetuning_scores import open_predictor


class Predictions(NamedTuple):
    """The result of `predict`."""

    step: int  # step of the checkpoint
    files: Sequence[Path]
    rows: Mapping[str, int]  # number of predicted examples by split
    scores: Mapping[str, float] | None  # scores on labelled examples, if any
    scored: Mapping[str, int]  # number of labelled examples by split, if any
    notes: Sequence[str]  # findings about the data, one per line


def predict(
    run_dir: str,
    output: str,
    *,
    input_path: str | None = None,
    submission: bool = False,
    probabilities: bool = False,
    checkpoint: str = "auto",
    batch_size: int | None = None,
    mesh: MeshSection | None = None,
    force: bool = False,
    on_error: OnError | None = None,
    console: Console | None = None,
) -> Predictions:
    """Predicts the examples of a file, or the test splits of the run's task.

    For SQuAD 2.0, uses the no-answer threshold of this checkpoint's evaluation on the dev split.

    Args:
        run_dir: run directory of `finetune`.
        output: .jsonl (full records) or .csv (id and prediction). With `submission`: a directory
            for the benchmark's files. The directory may already contain the files of other tasks.
        input_path: a file in the task's format, or of a search a directory in the layout of BEIR
            or NanoBEIR. Default: the test splits. Labels are optional: only rows with a label are
            scored.
        submission: write files in the benchmark's submission format.
        probabilities: in a .csv, add a column ``probability:LABEL`` for each label.
        checkpoint: `auto` (the best checkpoint), `last`, `best`, or a step.
        batch_size: rows per batch; does not change the predictions.
        mesh: devices to use. Default: all devices.
        force: replace `output`.
        on_error: "skip" skips malformed rows of a table, "stop" raises. Default: the setting of the
            run's task.
        console: console for the result.

    Raises:
        UserError: the run is not fine-tuned, a file is missing, `output` exists or is a file of
            the task or the input, the batch size is invalid, or a SQuAD 2.0 run has no evaluation
            of this checkpoint.
    """
    path = Path(output)
    _check_output(path, submission=submission, force=force)
    if probabilities and (submission or path.suffix != ".csv"):
        allowed = "a .csv; a .jsonl has all probabilities without this option"
        raise UserError.wrong("predict.probabilities", path, allowed, place="--probabilities")
    check_batch_size(batch_size)
    arguments = {
        "run_dir": run_dir,
        "output": output,
        "--input": input_path,
        "--submission": submission,
        "--probabilities": probabilities,
        "--checkpoint": checkpoint,
        "--batch-size": batch_size,
        "--force": force,
    }
    join_same_command("predict", mesh, arguments)
    initialise(mesh or MeshSection())  # all processes of the job share one lock
    with hold_output(path):
        run = open_run(run_dir)
        task = section_of(run).task  # raises if the run was not fine-tuned
        if on_error is not None:
            require_base(task, RowsSection, place="--on-error")
            task = task.model_copy(update={"on_error": on_error})
        require_other_file(path, [input_path, *task.inputs.values()])
        heads = run.heads
        of_labels = heads.task == "sequence_classification" and heads.text_head is None
        if probabilities and (not of_labels or heads.problem == "regression"):
            raise UserError(
                "predict.probabilities", "this task predicts no labels", place="--probabilities"
            )
        loaded, family, predictor = open_predictor(
            run,
            roles=("test",) if input_path is None else ("input",),
            checkpoint=checkpoint,
            batch_size=batch_size,
            mesh=mesh,
            input=input_path,
            task=task,
        )
        labelled: dict[str, list[Record]] = {}

        def predicted() -> Iterator[tuple[str, list[Record]]]:
            for name, split in family.splits.items():
                for records in predictor.stream(loaded.params, split):
                    if found := family.labelled(records):
                        labelled.setdefault(name, []).extend(found)
                    yield name, with_integers(records) if loaded.heads.integer_labels else records

        files = _write(
            path, family, predicted(), submission=submission, probabilities=probabilities
        )
        scores = score_splits(family, labelled) if labelled else None
    rows = {name: split.examples for name, split in family.splits.items()}
    scored = {name: len(found) for name, found in labelled.items()}
    result = Predictions(loaded.step, files, rows, scores, scored, family.notes)
    if console is not None and jax.process_index() == 0:
        for line in _lines(result):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    return result


def _check_output(path: Path, *, submission: bool, force: bool) -> None:
    """Raises UserError before any computation if the suffix is wrong or the output exists."""
    if submission:
        if path.exists() and not path.is_dir():
            raise UserError.wrong(
                "predict.submission_file", "a file", "a directory for --submission", place=path
            )
        return
    found = "a directory" if path.is_dir() else path.suffix or "no suffix"
    if found not in SUFFIXES:
        raise UserError(
            "predict.suffix",
            f"found {found}, allowed: {one_of(SUFFIXES)}, or a directory with --submission",
            place=path,
        )
    if path.exists() and not force:
        raise output_exists(path)


def _write(
    path: Path,
    family: Family,
    predicted: Iterable[tuple[str, list[Record]]],
    *,
    submission: bool,
    probabilities: bool,
) -> list[Path]:
    """Writes records while they are predicted, and returns the files. One process writes."""
    if jax.process_index() > 0:
        for _ in predicted:
            pass
        return []
    if submission:
        whole: dict[str, list[Record]] = {name: [] for name in family.splits}
        for name, records in predicted:
            whole[name] += records
        written = (family.write_official(name, found, path) for name, found in whole.items())
        return list(itertools.chain.from_iterable(written))
    several = len(family.splits) > 1
    with open_prediction_file(path, probabilities=probabilities) as file:
        for name, records in predicted:
            file.write(records, split=name if several else None)
    return [path]


def _lines(result: Predictions) -> list[str]:
    """Returns the lines to print, with `` (7 of 20 rows have a label)`` if labels are missing."""
    files = ", ".join(map(str, result.files))
    counts = ", ".join(
        counted(number, "row") if name == "input" else f"{name} {number:,}"
        for name, number in result.rows.items()
    )
    lines = [*result.notes, f"{files}: {counts}"]
    if result.scores:
        of = result.rows
        some = [f"{n:,} of {of[name]:,} rows" for name, n in result.scored.items() if n < of[name]]
        labelled = f" ({', '.join(some)} have a label)" if some else ""
        lines.append(format_scores(result.scores) + labelled)
    return lines
