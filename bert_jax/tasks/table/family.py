"""A table of one's own: one or two texts in a row, and a label, several labels or a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import pydantic

from bert_jax.errors import UserError
from bert_jax.model.config import ProblemName
from bert_jax.section import Section
from bert_jax.tasks.family import Opening, Record
from bert_jax.tasks.scores import figures
from bert_jax.tasks.sequence import (
    Example,
    Labelling,
    SequenceFamily,
    SequenceSplit,
    notes_of,
)
from bert_jax.tasks.table.files import RawRow, TableColumns, iterate_rows, read_rows
from bert_jax.tasks.table.held_out import hold_out
from bert_jax.tasks.table.labels import (
    find_names,
    find_problem,
    is_missing,
    spell_names,
    target_of,
    weights_of,
)

# The first is what checkpoints are ranked by. Of one label that is accuracy, but macro F1 with
# class weights: who sets them wants rare labels found, which accuracy hardly sees.
FIGURES: Final[Mapping[ProblemName, tuple[str, ...]]] = {
    "single_label": ("accuracy", "macro_f1"),
    "multi_label": ("micro_f1", "macro_f1", "subset_accuracy"),
    "regression": ("spearman", "pearson", "mse"),
}


class TableSection(Section):
    """Files with columns by name: .csv, .tsv (no quotes), .jsonl or .parquet.

    ``{kind: table, train: mine.csv, text: review, label: stars}``
    """

    kind: Literal["table"] = "table"
    train: str
    dev: str | None = None  # None: a part of `train`
    test: str | None = None
    text: str  # column
    pair: str | None = None  # column of a second text
    label: str  # column
    id: str | None = None  # column; None: the line
    problem: Literal["auto", "single_label", "multi_label", "regression"] = "auto"
    # Between several labels in a text. JSON lines and Parquet may have lists.
    label_separator: str = pydantic.Field(default="|", min_length=1)
    threshold: float = pydantic.Field(default=0.5, gt=0, lt=1)  # of each of several labels
    dev_fraction: float = pydantic.Field(default=0.1, gt=0, lt=1)
    class_weights: Literal["none", "balanced"] | dict[str, pydantic.PositiveFloat] = "none"

    @property
    def columns(self) -> TableColumns:
        """Which column is what."""
        return TableColumns(self.text, self.pair, self.label, self.id)


def open_table(section: TableSection, opening: Opening) -> SequenceFamily:
    """Opens a table.

    The kind of problem and the names of the labels are found in the training set, unless they are
    given. A dev set is made of the training set if there is none, and is the same one whenever the
    file's rows and the seed are the same.

    Args:
        section: of the task.
        opening: of the run. Without role "train" there are no class weights.

    Raises:
        UserError: a file or column that is not there; a line that is no row; a label that is
            missing, unknown or no number; fewer than two labels; a role without a file.
    """
    found = _read(section, opening)
    labelling, notes = _labelling(section, opening, found)
    splits = {
        name: _examples(section, rows, labelling, required=name in ("train", "dev"))
        for name, rows in found.items()
    }
    if "train" in splits and section.dev is None:
        splits["train"], splits["dev"] = _made_dev(section, splits["train"], opening.seed)
        counts = [f"{len(splits[name]):,} of {name}" for name in ("train", "dev")]
        notes.append(f"dev: made of {section.train}, seed {opening.seed}: {', '.join(counts)}")
    splits = {name: split for name, split in splits.items() if name in opening.roles}
    weights = None
    if "train" in splits:
        targets = (example.target for example in splits["train"])
        weights = weights_of(section.class_weights, labelling, targets)
    made = {
        name: SequenceSplit(
            examples,
            labelling=labelling,
            tokenizer=opening.tokenizer,
            max_length=opening.max_length,
        )
        for name, examples in splits.items()
    }
    for name, split in made.items():
        notes += notes_of(name, split, splits[name], opening.max_length)
    keys = _keys(section, labelling)
    return SequenceFamily(
        labelling=labelling,
        best_metric=keys[0],
        class_weights=weights,
        splits=made,
        notes=tuple(notes),
        figures=lambda records: figures(records, keys),
        official=_no_benchmark,
    )


def _read(section: TableSection, opening: Opening) -> dict[str, list[RawRow]]:
    """Returns the rows of every file that the roles need."""
    paths = {
        "train": section.train,
        "dev": section.dev,
        "test": section.test,
        "input": None if opening.input is None else str(opening.input),
    }
    roles = set(opening.roles)
    if section.dev is None and "dev" in roles:
        roles = roles - {"dev"} | {"train"}
    found = {}
    for role in ("train", "dev", "test", "input"):
        if role in roles:
            path = paths[role]
            if path is None:
                raise UserError(f"task.{role}: found no file, allowed: one, to open this split")
            labelled = role in ("train", "dev")
            found[role] = read_rows(Path(path), section.columns, labelled=labelled)
    return found


def _labelling(
    section: TableSection, opening: Opening, found: dict[str, list[RawRow]]
) -> tuple[Labelling, list[str]]:
    """Returns what the labels mean, and how that was found out."""
    problem, notes = section.problem, []
    if problem == "auto":
        problem, why = _problem(section, opening, found)
        notes.append(f"problem: {problem}, since {why}")
    names = opening.labels or find_names(
        found.get("train") or read_rows(Path(section.train), section.columns, labelled=True),
        column=section.label,
        problem=problem,
        separator=section.label_separator,
    )
    if (problem == "regression") != (len(names) == 1):
        raise UserError(
            f"task.problem: found {problem}, but the model has {len(names)} labels: "
            f"{spell_names(names)}"
        )
    return Labelling(problem, tuple(names), section.threshold), notes


def _problem(
    section: TableSection, opening: Opening, found: dict[str, list[RawRow]]
) -> tuple[ProblemName, str]:
    """Finds the kind of problem out, the training set read or not."""
    if "train" in found:
        return find_problem(found["train"])
    if opening.labels is not None and len(opening.labels) == 1:
        return "regression", "the model has one label"
    if Path(section.train).suffix in (".csv", ".tsv"):
        return "single_label", "the model has several labels, and the table no lists"
    # One labelled row of the training set is enough to tell.
    for row in iterate_rows(Path(section.train), section.columns, labelled=True):
        if not is_missing(row):
            return find_problem([row])
    raise UserError(f'{section.train}: "{section.label}" found no label, allowed: one or more')


def _examples(
    section: TableSection, rows: Sequence[RawRow], labelling: Labelling, *, required: bool
) -> list[Example]:
    # A column that is empty throughout says nothing, not that no label of several is right.
    known = required or any(not is_missing(row) for row in rows)
    return [
        Example(
            id=row.id,
            text=row.text,
            pair=row.pair,
            target=target_of(
                row,
                labelling,
                column=section.label,
                separator=section.label_separator,
                required=required,
            )
            if known
            else None,
            line=row.line,
        )
        for row in rows
    ]


def _made_dev(
    section: TableSection, examples: list[Example], seed: int
) -> tuple[list[Example], list[Example]]:
    train, dev = hold_out(examples, fraction=section.dev_fraction, seed=seed)
    if not dev:
        raise UserError(
            f"{section.train}: found {len(examples)} rows, too few different ones to make a dev "
            f"set of, allowed: more, or task.dev"
        )
    return train, dev


def _keys(section: TableSection, labelling: Labelling) -> tuple[str, ...]:
    """Returns the keys of the figures; by the first one checkpoints are ranked."""
    keys = FIGURES[labelling.problem]
    if labelling.problem != "single_label":
        return keys
    if section.class_weights != "none":
        keys = keys[::-1]
    return (*keys, "matthews") if len(labelling.names) == 2 else keys


def _no_benchmark(split: str, records: Sequence[Record], directory: Path) -> Sequence[Path]:
    del split, records, directory
    raise UserError('task.kind: found "table", which no benchmark takes, allowed: glue, squad')
