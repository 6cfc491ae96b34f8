"""Predictions of a fine-tuned run for a file or its task's test splits, written to disk."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import jax
import pyarrow as pa
from etils import epath

from bert_jax.data.row_errors import OnError
from bert_jax.errors import UserError
from bert_jax.model.config import HeadsSection
from bert_jax.parallel.section import MeshSection
from bert_jax.runs.directory import Run
from bert_jax.tasks.choice.family import MultipleChoiceSection
from bert_jax.tasks.family import Family, Record
from bert_jax.tasks.predictor import score_splits
from bert_jax.tasks.table.family import TableSection
from bert_jax.tasks.training.evaluation import (
    predict_run,
    section_of,
    write_csv,
    write_records,
)

SUFFIXES: Final = (".jsonl", ".csv")


class Predictions(NamedTuple):
    """What was predicted and written."""

    step: int  # of the checkpoint
    files: Sequence[Path]
    records: Mapping[str, Sequence[Record]]  # by split
    scores: Mapping[str, float] | None  # of the labelled examples; None without any
    scored: Mapping[str, int]  # number of labelled examples of each split that has some
    notes: Sequence[str]  # findings about the data, a line each


class PredictionOutput(NamedTuple):
    """Where predictions go: a .jsonl or .csv, or a directory for a benchmark's own files."""

    path: Path
    submission: bool  # the benchmark's own files
    force: bool  # replace `path`
    probabilities: bool = False  # in a .csv: a column for each label

    def check(self) -> None:
        """Checks the path before anything is computed.

        Raises UserError: another suffix, or something is there already.
        """
        path = self.path
        if self.submission:
            if path.exists() and not path.is_dir():
                raise UserError(f"{path}: found a file, allowed: a directory for --submission")
            return
        if path.suffix not in SUFFIXES:
            raise UserError(
                f"{path}: found {path.suffix or 'no suffix'}, allowed: {', '.join(SUFFIXES)}, or a "
                f"directory with --submission"
            )
        if path.exists() and not self.force:
            raise UserError(f"{path}: is already there; allowed: another name, or --force")

    def check_task(self, heads: HeadsSection) -> None:
        """Checks that a run's task has what is asked for; UserError: no probabilities of labels."""
        if not self.probabilities or self.submission or self.path.suffix != ".csv":
            return
        if heads.task != "sequence_classification" or heads.problem == "regression":
            raise UserError(
                "--probabilities: this task predicts no label of a text, allowed: leave it out; a "
                ".jsonl has all that is known of an example"
            )

    def write(self, family: Family, records: Mapping[str, Sequence[Record]]) -> list[Path]:
        """Writes the records of all splits, and returns the files."""
        if self.submission:
            return [
                file
                for name, found in records.items()
                for file in family.write_official(name, found, self.path)
            ]
        several = len(records) > 1
        rows = [
            {"split": name, **record} if several else record
            for name, found in records.items()
            for record in found
        ]
        if self.path.suffix == ".jsonl":
            write_records(epath.Path(self.path), rows)
        else:
            columns = [*(["split"] if several else []), "id", "prediction"]
            table = {name: [_cell(row[name]) for row in rows] for name in columns}
            table |= _probabilities(rows) if self.probabilities else {}
            write_csv(epath.Path(self.path), pa.table(table))
        return [self.path]


def predict_to(
    output: PredictionOutput,
    run: Run,
    *,
    input_path: str | None,
    checkpoint: str,
    batch_size: int | None,
    mesh: MeshSection | None,
    on_error: OnError | None,
) -> Predictions:
    """Predicts a file or the test splits and writes the result, see `bert_jax.predict`."""
    task = section_of(run).task  # refuses a run that was not fine-tuned
    if on_error is not None:
        if not isinstance(task, TableSection | MultipleChoiceSection):
            raise UserError(
                f'--on-error: found it with task "{task.kind}", allowed: table, multiple_choice'
            )
        task = task.model_copy(update={"on_error": on_error})
    output.check_task(run.heads)
    loaded, family, records = predict_run(
        run,
        roles=("test",) if input_path is None else ("input",),
        checkpoint=checkpoint,
        batch_size=batch_size,
        mesh=mesh,
        nothing=f"{run.directory}: its task has no test file, allowed: --input FILE, or a run "
        "whose task has",
        input=input_path,
        task=task,
    )
    with_label = {
        name: [record for record in found if record.get("label") is not None]
        for name, found in records.items()
    }
    labelled = {name: found for name, found in with_label.items() if found}
    scores = score_splits(family, labelled) if labelled else None
    scored = {name: len(found) for name, found in labelled.items()}
    files = output.write(family, records) if jax.process_index() == 0 else []
    return Predictions(loaded.step, files, records, scores, scored, family.notes)


def _probabilities(rows: Sequence[Record]) -> dict[str, list[float]]:
    """Returns a column for each label; the task has them, see `PredictionOutput.check_task`."""
    names = rows[0]["probabilities"] if rows else {}
    return {f"probability:{name}": [row["probabilities"][name] for row in rows] for name in names}


def _cell(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else str(value)
