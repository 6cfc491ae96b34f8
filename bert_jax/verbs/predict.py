"""`bert-jax predict`: a fine-tuned run and a file → predictions, or a benchmark's own files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import jax
import pyarrow as pa
from etils import epath
from pyarrow import csv as pa_csv
from rich.console import Console

from bert_jax.errors import UserError
from bert_jax.files.small import write_whole
from bert_jax.parallel.mesh import open_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.runs.directory import open_run
from bert_jax.runs.parameters import load_params
from bert_jax.tasks.family import Family, Record
from bert_jax.tasks.predictor import predict_splits, score_splits
from bert_jax.tasks.training.evaluation import open_data, predictor_of, write_records
from bert_jax.train.progress_display import format_scores

SUFFIXES: Final = (".jsonl", ".csv")


class Predictions(NamedTuple):
    """What was predicted and written."""

    step: int  # of the checkpoint
    files: Sequence[Path]
    records: Mapping[str, Sequence[Record]]  # by split
    scores: Mapping[str, float] | None  # where every example has a label


def predict(
    run_dir: str,
    output: str,
    *,
    input_path: str | None = None,
    submission: bool = False,
    checkpoint: str = "auto",
    batch_size: int | None = None,
    mesh: MeshSection | None = None,
    force: bool = False,
    console: Console | None = None,
) -> Predictions:
    """Predicts a file, or the test splits of the task that a run was fine-tuned on.

    Args:
        run_dir: of `finetune`.
        output: .jsonl (everything known of each example) or .csv (id and prediction); with
            `submission` a directory, which gets the files that the benchmark itself takes and may
            hold those of other tasks already.
        input_path: a file in the task's own layout, with or without labels; None for the test
            splits.
        submission: write the benchmark's files.
        checkpoint: `auto` (the best), `last`, `best`, or a step.
        batch_size: rows at a time; changes no prediction.
        mesh: devices to use; None for all there are.
        force: replace `output`.
        console: where the result is shown.

    Raises:
        UserError: no fine-tuned run, no such file, `output` is there.
    """
    run = open_run(run_dir)
    target = Path(output)
    _check_output(target, submission=submission, force=force)
    roles = ("test",) if input_path is None else ("input",)
    family = open_data(run, roles=roles, input=None if input_path is None else Path(input_path))
    names = list(family.splits)
    if not names:
        raise UserError(
            f"{run_dir}: its task has no test file, allowed: --input FILE, or a run whose task has"
        )
    loaded = load_params(run, checkpoint=checkpoint, mesh=open_mesh(mesh))
    predictor = predictor_of(run, loaded, batch_size=batch_size)
    records = predict_splits(predictor, loaded.params, family, names)
    scores = _scores(family, records)
    files: list[Path] = []
    if jax.process_index() == 0:
        if submission:
            for name in names:
                files += family.write_official(name, records[name], target)
        else:
            files.append(_write(target, records))
        if console is not None:
            _show(console, files, records, scores)
    return Predictions(loaded.step, files, records, scores)


def _check_output(target: Path, *, submission: bool, force: bool) -> None:
    if submission:
        if target.exists() and not target.is_dir():
            raise UserError(f"{target}: found a file, allowed: a directory for --submission")
        return
    if target.suffix not in SUFFIXES:
        raise UserError(
            f"{target}: found {target.suffix or 'no suffix'}, allowed: {', '.join(SUFFIXES)}, or a "
            f"directory with --submission"
        )
    if target.exists() and not force:
        raise UserError(f"{target}: is already there; allowed: another name, or --force")


def _scores(family: Family, records: Mapping[str, Sequence[Record]]) -> dict[str, float] | None:
    """Returns figures where there is something to compare with."""
    labelled = {
        name: found
        for name, found in records.items()
        if found and all(record.get("label") is not None for record in found)
    }
    return score_splits(family, labelled) if labelled else None


def _write(target: Path, records: Mapping[str, Sequence[Record]]) -> Path:
    """Writes all splits to one file; which one is said where there are several."""
    several = len(records) > 1
    found = [
        {"split": name, **record} if several else record
        for name, of_split in records.items()
        for record in of_split
    ]
    if target.suffix == ".jsonl":
        write_records(epath.Path(target), found)
        return target
    columns = (["split"] if several else []) + ["id", "prediction"]
    table = pa.table({name: [_cell(record[name]) for record in found] for name in columns})
    sink = pa.BufferOutputStream()
    pa_csv.write_csv(table, sink, pa_csv.WriteOptions(quoting_style="needed"))
    write_whole(epath.Path(target), sink.getvalue().to_pybytes())
    return target


def _cell(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else str(value)


def _show(
    console: Console,
    files: Sequence[Path],
    records: Mapping[str, Sequence[Record]],
    scores: Mapping[str, float] | None,
) -> None:
    counts = ", ".join(f"{name} {len(found):,}" for name, found in records.items())
    console.print(
        f"{', '.join(map(str, files))}: {counts}", markup=False, highlight=False, soft_wrap=True
    )
    if scores:
        console.print(format_scores(scores), markup=False, highlight=False, soft_wrap=True)
