"""Reads tables of multiple-choice questions: one row per question."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bert_jax.data.row_errors import RowError, RowErrors
from bert_jax.data.tables import Delimiter, TableRow, ragged, read_fields
from bert_jax.errors import UserError
from bert_jax.files.read import is_whole
from bert_jax.tasks.family import Columns
from bert_jax.tasks.labels import UNKNOWN, canonical, number_of, unknown_label


class ChoiceColumns(NamedTuple):
    """Columns of a table; see `bert_jax.tasks.choice.MultipleChoiceSection`."""

    text: str
    choices: tuple[str, ...]
    label: str
    stem: str | None = None
    id: str | None = None
    header: bool = True
    label_is: Literal["index", "column", "text"] | tuple[str, ...] = "index"


class ChoiceQuestion(NamedTuple):
    """A question with its choices."""

    id: str | None
    text: str
    choices: tuple[str, ...]  # each begins with the stem
    label: int | None


class ChoiceTable(NamedTuple):
    """The questions of a table."""

    questions: list[ChoiceQuestion]
    numbers: set[int]  # labels that count the choices, also those of skipped rows

    @property
    def widths(self) -> tuple[int, int]:
        """Smallest and largest number of choices."""
        counts = {len(question.choices) for question in self.questions}
        return min(counts), max(counts)


def read_choices(
    table: Iterable[TableRow],
    columns: ChoiceColumns,
    required: Columns,
    *,
    labelled: bool,
    errors: RowErrors,
) -> ChoiceTable:
    """Reads a table of questions. If `labelled` is set, every question must have a label.

    Raises UserError if a `required` column is missing, and RowError for an empty choice, or a
    missing or unknown label.
    """
    numbers = set[int]()

    def question(row: TableRow) -> ChoiceQuestion:
        row.require(required)
        found = _question(row, columns, numbers)
        if labelled and found.label is None:
            raise RowError.wrong("choice.no_label", "no label", "one in each row", place=row.place)
        return found

    return ChoiceTable(errors.kept(table, question), numbers)


def read_bare(path: Path, delimiter: Delimiter | None, errors: RowErrors) -> Iterator[TableRow]:
    """Yields the rows of a table without a header. Columns are named "0", "1", and so on."""
    if path.suffix not in (".csv", ".tsv"):
        raise UserError.wrong(
            "choice.header", path.suffix or "no suffix", ".csv, .tsv without header", place=path
        )
    width = None
    for line, fields in read_fields(path, delimiter=delimiter, errors=errors):
        width = width or len(fields)
        if len(fields) != width:
            like = "the first line"
            errors.refuse(ragged(path, line, found=len(fields), allowed=width, like=like))
            continue
        values = {str(number): field for number, field in enumerate(fields)}
        yield TableRow(path, line, values, values)


def _question(row: TableRow, columns: ChoiceColumns, numbers: set[int]) -> ChoiceQuestion:
    """Returns the question of a row. Adds a label that counts the choices to `numbers`."""
    names, choices = columns.choices, tuple[str, ...]()
    if names[1:]:
        choices = tuple(row.text(name) for name in names)
    else:
        choices, names = _listed(row, names[0])
    for name, choice in zip(names, choices, strict=True):
        if not choice.strip():
            raise RowError.wrong(
                "choice.empty", "no text", f"{len(choices)} choices", place=row.at(name)
            )
    stem = f"{row.text(columns.stem)} " if columns.stem else ""
    label = row.values.get(columns.label)
    if columns.label_is == "index" and number_of(label) == UNKNOWN:
        label = None  # a test set of `datasets`
    used = (columns.text, columns.stem, columns.label, *columns.choices)
    own = row.values.get(columns.id or "id") if columns.id or "id" not in used else None
    return ChoiceQuestion(
        id=None if own is None else str(own),
        text=row.text(columns.text),
        choices=tuple(f"{stem}{choice}".strip() for choice in choices),
        label=(
            None if label in (None, "") else _label(row, label, choices, columns, names, numbers)
        ),
    )


def _listed(row: TableRow, column: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the choices in a column of lists, and their names.

    ``{"text": ["x", "y"], "label": ["A", "B"]}``, as in ARC, names them A and B. The choices of a
    plain list are named by their numbers.
    """
    found: Any = row.values[column]
    texts: Any = found.get("text") if isinstance(found, dict) else found
    names: Any = found.get("label") if isinstance(found, dict) else None
    is_list = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
    if not is_list or len(texts) < 2 or (names is not None and len(names) != len(texts)):
        raise RowError.wrong(
            "choice.list", f"{found!r:.60}", "a list of two or more texts", place=row.at(column)
        )
    return tuple(texts), tuple(map(str, names or range(len(texts))))


def _label(
    row: TableRow,
    found: Any,
    choices: tuple[str, ...],
    columns: ChoiceColumns,
    own_names: tuple[str, ...],
    numbers: set[int],
) -> int:
    """Returns the index of a label. `own_names` are the columns or names of the row's choices.

    Adds a label that counts the choices to `numbers`.
    """
    # pandas stores whole numbers as 1.0 if some are missing.
    label = canonical(str(found).strip()) if columns.label_is == "index" else str(found)
    names = {
        "index": tuple(str(number) for number in range(len(choices))),
        "column": own_names,
        "text": choices,
    }
    kind = columns.label_is
    listed: Any = row.values[columns.choices[0]]
    is_named = isinstance(listed, dict) and listed.get("label") is not None
    # If all names of the row's choices are numbers, a number is the name of a choice.
    if kind == "index" and is_named and (label in own_names or all(map(is_whole, own_names))):
        kind = "column"
    if kind == "index" and is_whole(label):
        numbers.add(int(label))
    allowed = names[kind] if isinstance(kind, str) else kind[: len(choices)]
    if (count := allowed.count(label)) == 1:
        return allowed.index(label)
    place = row.at(columns.label)
    if count:
        raise RowError(
            "choice.label_ambiguous", f'found "{label}", the text of {count} choices', place=place
        )
    others = [other for other, texts in names.items() if label in texts]
    hint = f"; did you mean label_is: {others[0]}?" if others else None
    if kind == "index" and label == str(len(choices)):
        hint = f"; if labels count from 1, set label_is: {numbers_of(len(choices), first=1)}"
    raise unknown_label(label, allowed, place=place, hint=hint)


def numbers_of(count: int, *, first: int) -> str:
    """Returns the setting of labels that count the choices: ``["1", "2", "3"]``."""
    return json.dumps([str(number) for number in range(first, first + count)])
