"""The task family of user tables: one or two texts per row, with labels or a number."""

import hashlib
import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self

import pydantic

from bert_jax.data.memory_table import MemoryTable
from bert_jax.data.row_errors import RowError, RowErrors
from bert_jax.data.tables import TableRow
from bert_jax.errors import UserError, commas
from bert_jax.model.section import ProblemName
from bert_jax.section import refuse_same_column
from bert_jax.tasks import family
from bert_jax.tasks.label_values import is_missing_text, label_parts, look, plain_label, printable
from bert_jax.tasks.labels import (
    UNKNOWN,
    Labelling,
    TextRow,
    find_problem,
    number_of,
    shown_labels,
)
from bert_jax.tasks.sequence import SequenceTask, TextExample

# Scores by problem; the first one ranks checkpoints. Exception: single-label data with class
# weights use macro F1, because accuracy hardly depends on rare labels.
FIGURES: Final[Mapping[ProblemName, tuple[str, ...]]] = {
    "single_label": ("accuracy", "macro_f1"),
    "multi_label": ("micro_f1", "macro_f1", "subset_accuracy"),
    "regression": ("spearman", "pearson", "mse"),
}


class TableSection(family.RowsSection):
    """Files with named columns: .csv, .tsv, .jsonl or .parquet.

    ``{kind: table, train: mine.csv, text: review, label: stars}``
    """

    text_column = "text"

    kind: Literal["table"] = "table"
    text: str
    """Column of the text."""
    pair: str | None = None
    """Column of the second text of a pair."""
    label: str
    """Column of the label."""
    problem: Literal["auto", "single_label", "multi_label", "regression"] = "auto"
    """`auto`: detected from the labels. Lists are multi-label, fractional numbers are a regression,
    integers and names are single-label."""
    label_separator: str = pydantic.Field(default="|", min_length=1)
    """Separator of the labels in a multi-label cell. JSON lines and Parquet may contain lists
    instead."""
    threshold: float = pydantic.Field(default=0.5, gt=0, lt=1)
    """Multi-label only: minimum probability to predict a label."""
    dev_fraction: float = pydantic.Field(default=0.1, gt=0, lt=1)
    """Fraction of `train` to hold out if `dev` is not set."""
    class_weights: Literal["none", "balanced"] | dict[str, pydantic.PositiveFloat] = "none"
    """Label weights in the loss. `balanced`: equal total weight per label. Or {label: weight}."""

    @pydantic.model_validator(mode="after")
    def _one_role_each(self) -> Self:
        names = ("text", "pair", "label")
        refuse_same_column({name: getattr(self, name) for name in names})
        return self

    @property
    def class_columns(self) -> Sequence[str]:
        """The column of the labels."""
        return (self.label,)

    def required(self, role: str) -> family.Columns:
        """Returns the columns of texts and ids, and of labels if the role needs them."""
        keys = ("text", "pair", "id", *(["label"] if family.needs_labels(role) else []))
        return [(f"task.{key}", getattr(self, key)) for key in keys]

    def open(self, request: family.DataRequest) -> family.Family:
        """Opens the tables.

        If the problem or the labels are not given, they come from the training set. If there is no
        dev set, `hold_out` takes one from the training set. Raises UserError for a missing file or
        column, a malformed row, a missing or unknown label, fewer than two labels, or a training
        set that is too small for `hold_out`.
        """
        roles = set(request.roles)
        if self.dev is None and "dev" in roles:
            roles = roles - {"dev"} | {"train"}
        ordered = [role for role in ("train", "dev", "test", "input") if role in roles]
        found = {role: _read(self, request, role) for role in ordered}
        labelling, notes = _labelling(self, request, found)
        task = SequenceTask(
            labelling=labelling,
            keys=_figures(self, labelling),
            class_weights=self.class_weights,
            write_official=family.no_benchmark("table"),
        )
        examples = {}
        for name, (source, rows, errors, padded) in found.items():
            if padded:
                around = f"labels had blanks around them, which were removed, first {padded[0]!r}"
                notes += family.count_notes(source, {around: len(padded)})
            if not family.needs_labels(name):
                rows, unknown = labelling.without_unknown(rows)
                what = "labels are {} and count as missing"
                notes += family.count_notes(
                    source, {what.format(each): n for each, n in unknown.items()}
                )
            # In multi-label data, an empty cell is an empty set of labels. If all cells are empty,
            # the split is unlabelled instead.
            if not family.needs_labels(name) and all(row.unlabelled for row in rows):
                rows = [row._replace(label=None) for row in rows]
            examples[name] = task.examples(rows, required=family.needs_labels(name), errors=errors)
            notes += errors.note(source, kept=len(examples[name]))
            if not examples[name]:
                raise family.no_rows(source, errors)
        if "train" in examples and self.dev is None:
            train, dev = hold_out(examples["train"], fraction=self.dev_fraction, seed=request.seed)
            if not dev:
                raise _nothing_to_hold_out(self.train, len(train), labelling)
            examples |= {"train": train, "dev": dev}
            notes.append(
                f"dev: split off from {self.train} with split_seed {request.seed}: "
                f"{len(train):,} train and {len(dev):,} dev examples"
            )
        wanted = {name: examples[name] for name in examples if name in request.roles}
        return task.family(wanted, request, notes=notes)


class _Table(NamedTuple):
    source: Path | MemoryTable
    rows: Sequence[TextRow]
    errors: RowErrors
    padded: Sequence[str]  # labels with blanks around them, which were removed


def _read(section: TableSection, request: family.DataRequest, role: str) -> _Table:
    source = request.source(section, role)
    table, errors = section.rows(source, role)
    padded: list[str] = []
    rows = text_rows(table, section, section.required(role), errors=errors, padded=padded)
    if not rows:
        raise family.no_rows(source, errors)
    return _Table(source, rows, errors, padded)


def text_rows(
    table: Iterable[TableRow],
    section: TableSection,
    required: family.Columns,
    *,
    errors: RowErrors,
    padded: list[str] | None = None,
) -> list[TextRow]:
    """Returns the rows of a table. Removes blanks around labels; `padded` receives such labels.

    By default, ids come from the column "id" if all its values are texts or integers. Otherwise
    they are the indices of the rows; skipped rows count too. Raises UserError if one of the
    `required` columns is missing, and RowError for a text or an id of a wrong type.
    """
    used = (section.text, section.pair, section.label)
    found: list[TextRow] = []
    own: list[Any] = []
    padded = [] if padded is None else padded

    def read(row: TableRow) -> None:
        row.require(required)
        number = len(found) + errors.count
        named = number if section.id is None else row_id(row, section.id)
        label = plain_label(row.labels(section.label))
        if isinstance(label, str) and label != label.strip():
            padded.append(label)
            label = label.strip()
        pair = None if section.pair is None else row.text(section.pair)
        found.append(TextRow(row.place, row.line, named, row.text(section.text), pair, label))
        own.append(row.values.get("id") if "id" not in used else None)

    errors.kept(table, read)
    if section.id is None and all(map(_is_id, own)):
        return [row._replace(id=value) for row, value in zip(found, own, strict=True)]
    return found


def row_id(row: TableRow, column: str) -> int | str:
    """Returns the id in a column. Raises RowError if it is neither a text nor a whole number."""
    found = row.values[column]
    if not _is_id(found):
        raise RowError.wrong(
            "table.id", f"{found!r}", "a text or a whole number", place=row.at(column)
        )
    return found


def _is_id(value: Any) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


def _labelling(
    section: TableSection, request: family.DataRequest, found: dict[str, _Table]
) -> tuple[Labelling, list[str]]:
    """Returns the labelling, and a note if the problem was detected."""
    problem, notes, hint = section.problem, [], ""
    if problem == "auto":
        problem, why, hint = _problem(request, found)
        if "train" in found:
            notes.append(f"problem: {problem}, since {why}")
    labelling = Labelling(
        problem,
        request.labels or (),
        column=section.label,
        separator=section.label_separator,
        threshold=section.threshold,
        hint=hint,
    )
    if not labelling.names:
        train = found.get("train") or _read(section, request, "train")
        typed = Path(str(train.source)).suffix not in (".csv", ".tsv")
        labelling = labelling.with_names_of(train.rows, typed=typed)
        notes += _doubts(labelling, train.source)
    if (problem == "regression") != (len(labelling.names) == 1):
        raise UserError(
            "table.problem",
            f"found {problem}, but the model has {commas(shown_labels(labelling.names))}",
            place="task.problem",
        )
    return labelling, notes


def _doubts(labelling: Labelling, source: Path | MemoryTable) -> list[str]:
    """Returns notes on labels of a training set that may not be meant as labels of their own."""
    if labelling.problem == "regression":
        return []
    notes, spellings = [], defaultdict[str, list[str]](list)
    for name in labelling.names:
        spellings[look(name)].append(name)
    if alike := [name for names in spellings.values() if names[1:] for name in names]:
        shown = ", ".join(shown_labels([*map(printable, alike)]))
        notes.append(f"{source}: labels that look alike are different labels: {shown}")
    several = [name for name in labelling.names if label_parts(name, labelling.names)]
    if several and labelling.problem == "multi_label":
        shown = ", ".join(shown_labels(several))
        which = "labels that consist of others, see finetune.task.label_separator"
        notes.append(f"{source}: {which}: {shown}")
    numbers = [str(number) for number in range(UNKNOWN, len(labelling.names) - 1)]
    if missing := [*filter(is_missing_text, labelling.names)]:
        shown = ", ".join(missing)
        notes.append(f"{source}: labels that may stand for missing values are labels: {shown}")
    if [*labelling.names] == numbers:
        notes.append(f"{source}: {UNKNOWN} is a label; if it marks missing labels, remove its rows")
    return notes


def _problem(request: family.DataRequest, found: dict[str, _Table]) -> tuple[ProblemName, str, str]:
    """Detects the problem. If the training set is not open, returns the model's problem."""
    if "train" in found:
        return find_problem(found["train"].rows)
    # Same rule as in Hugging Face for a checkpoint without `problem_type`.
    guessed = "regression" if len(request.labels or ()) == 1 else "single_label"
    return request.problem or guessed, "the model has it", ""


def _figures(section: TableSection, labelling: Labelling) -> tuple[str, ...]:
    keys = FIGURES[labelling.problem]
    if labelling.problem != "single_label":
        return keys
    if section.class_weights != "none":
        keys = keys[::-1]
    return (*keys, "matthews") if len(labelling.names) == 2 else keys


def _nothing_to_hold_out(train: str | None, rows: int, labelling: Labelling) -> UserError:
    """Returns the error for a training set that is too small to hold out a dev set."""
    if labelling.problem != "single_label":
        return UserError(
            "table.no_dev_rows",
            f"cannot split off a dev set: all {rows:,} rows have the same text. Add rows, or set "
            "finetune.task.dev.",
            place=train,
        )
    error = UserError(
        "table.no_dev_classes",
        f"cannot split off a dev set: found {len(labelling.names):,} classes in {rows:,} rows, "
        "and a single text in each class. Add rows to a class, or set finetune.task.dev.",
        place=train,
    )
    if any(number_of(name) is None for name in labelling.names):
        return error
    return error.followed_by(
        " If the labels are measured numbers, set finetune.task.problem=regression."
    )


def hold_out(
    examples: Sequence[TextExample], *, fraction: float, seed: int
) -> tuple[list[TextExample], list[TextExample]]:
    """Splits examples into a training set and a dev set, each in file order.

    The dev set depends on the texts and the seed, but not on the order of the examples. In
    single-label data, holds out about ``fraction · n`` of the n examples of each label. Examples
    with equal labels and texts stay together. A label with a single text is not held out.
    """
    strata: defaultdict[Hashable, defaultdict[bytes, list[int]]]
    strata = defaultdict(lambda: defaultdict(list))
    for number, example in enumerate(examples):
        label = example.target if isinstance(example.target, int) else None
        strata[label][_hash(example, seed)].append(number)
    held: set[int] = set()
    for groups in strata.values():
        wanted = max(1, math.floor(fraction * sum(map(len, groups.values())) + 0.5))
        chosen: list[int] = []
        for key in sorted(groups)[:-1]:  # keep one text in the training set
            if len(chosen) < wanted:
                chosen += groups[key]
        held.update(chosen)
    train = [example for number, example in enumerate(examples) if number not in held]
    return train, [examples[number] for number in sorted(held)]


def _hash(example: TextExample, seed: int) -> bytes:
    # Prefix each text with its length: ("ab", "c") and ("a", "bc") must have different hashes.
    parts = [example.text] if example.pair is None else [example.text, example.pair]
    encoded = [part.encode() for part in parts]
    message = b"".join(len(part).to_bytes(8, "little") + part for part in encoded)
    return hashlib.blake2b(message, digest_size=16, key=str(seed).encode()).digest()
