"""Tables of questions with several choices: SWAG's, CODAH's, any by names of columns."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from bert_jax.data.memory_table import MemoryTable
from bert_jax.data.tables import TableRow, ragged, read_fields, read_table
from bert_jax.errors import UserError, did_you_mean


class ChoiceColumns(NamedTuple):
    """Which columns are read. Without a header their names are "0", "1" and so on."""

    text: str
    choices: tuple[str, ...]
    label: str
    stem: str | None = None  # how every choice begins
    id: str | None = None
    header: bool = True
    # What the label column holds: the number of the choice, its column's name, its text, or one of
    # these names, one for each choice.
    label_is: Literal["index", "column", "text"] | tuple[str, ...] = "index"


class ChoiceQuestion(NamedTuple):
    """One row of a table."""

    id: str | None
    text: str
    choices: tuple[str, ...]  # each with the stem before it
    label: int | None


class ChoiceFile(NamedTuple):
    """What a file holds."""

    questions: list[ChoiceQuestion]  # all of them labelled, or none
    stray_labels: int = 0  # of an unlabelled file: questions that have a label nevertheless


def read_choices(path: Path | MemoryTable, columns: ChoiceColumns, *, labelled: bool) -> ChoiceFile:
    """Reads a table of questions.

    One without a header is a .csv or .tsv; in one that is to be `labelled`, every question must
    have a label. Raises UserError: as `read_table`; a column that is not there, no question, a line
    with too few or too many fields, an empty choice, or a label that is none of the choices.
    """
    questions: list[ChoiceQuestion] = []
    for row in _table(path, columns):
        row.require(_asked(columns, labelled=labelled))
        questions.append(_question(row, columns))
        if labelled and questions[-1].label is None:
            raise UserError(f"{row.place}: found no label, allowed: one in each line")
    if not questions:
        raise UserError(f"{path}: found no question, allowed: one in each line")
    given = sum(question.label is not None for question in questions)
    if given == len(questions):
        return ChoiceFile(questions)
    return ChoiceFile([question._replace(label=None) for question in questions], given)


def _table(path: Path | MemoryTable, columns: ChoiceColumns) -> Iterator[TableRow]:
    if isinstance(path, MemoryTable):
        stem = [] if columns.stem is None else [columns.stem]
        return path.named([columns.text, *stem, *columns.choices])
    return read_table(path) if columns.header else _read_bare(path)


def _read_bare(path: Path) -> Iterator[TableRow]:
    """Yields the rows of a table without a header, with numbers for names."""
    if path.suffix not in (".csv", ".tsv"):
        raise UserError(
            f"{path}: found {path.suffix or 'no suffix'} with header: false, allowed: .csv, .tsv"
        )
    width = None
    for line, fields in read_fields(path):
        width = width or len(fields)
        if len(fields) != width:
            raise ragged(path, line, found=len(fields), allowed=width, like="the first line")
        values = {str(number): field for number, field in enumerate(fields)}
        yield TableRow(path, line, values, values)


def _asked(columns: ChoiceColumns, *, labelled: bool) -> list[tuple[str, str | None]]:
    asked = [("task.text", columns.text), *(("task.choices", name) for name in columns.choices)]
    asked += [("task.stem", columns.stem), ("task.id", columns.id)]
    return [*asked, ("task.label", columns.label)] if labelled else asked


def _question(row: TableRow, columns: ChoiceColumns) -> ChoiceQuestion:
    choices = tuple(row.text(name) for name in columns.choices)
    for name, choice in zip(columns.choices, choices, strict=True):
        if not choice.strip():
            raise UserError(
                f'{row.place}: found an empty "{name}", allowed: {len(choices)} choices, as in '
                "every line"
            )
    stem = f"{row.text(columns.stem)} " if columns.stem else ""
    label = row.values.get(columns.label)
    return ChoiceQuestion(
        id=str(row.values[columns.id]) if columns.id else None,
        text=row.text(columns.text),
        choices=tuple(f"{stem}{choice}".strip() for choice in choices),
        label=None if label in (None, "") else _label(row, str(label), choices, columns),
    )


def _label(row: TableRow, label: str, choices: tuple[str, ...], columns: ChoiceColumns) -> int:
    names = {
        "index": tuple(str(number) for number in range(len(choices))),
        "column": columns.choices,
        "text": choices,
    }
    kind = columns.label_is
    allowed = names[kind] if isinstance(kind, str) else kind
    if allowed.count(label) == 1:
        return allowed.index(label)
    if label in allowed:
        raise UserError(
            f'{row.place}: found the label "{label}", which is {allowed.count(label)} of the '
            "choices, allowed: one of them"
        )
    others = [other for other, texts in names.items() if label in texts]
    hint = f"; did you mean label_is: {others[0]}?" if others else did_you_mean(label, allowed)
    raise UserError(f'{row.place}: found the label "{label}", allowed: {", ".join(allowed)}{hint}')
