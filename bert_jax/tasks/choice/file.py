"""Tables of questions with several choices: SWAG's, CODAH's, any by names of columns."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from bert_jax.data.memory_table import MemoryTable
from bert_jax.data.row_errors import RowError, RowErrors
from bert_jax.data.tables import Delimiter, TableRow, ragged, read_fields, read_table
from bert_jax.errors import UserError, did_you_mean
from bert_jax.tasks.columns import ID


class ChoiceColumns(NamedTuple):
    """Which columns are read. Without a header their names are "0", "1" and so on."""

    text: str
    choices: tuple[str, ...]
    label: str
    stem: str | None = None  # how every choice begins
    id: str | None = None  # None: the column "id" if there is one
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


def read_choices(
    path: Path | MemoryTable,
    columns: ChoiceColumns,
    *,
    labelled: bool,
    delimiter: Delimiter | None = None,
    errors: RowErrors | None = None,
) -> list[ChoiceQuestion]:
    """Reads a table of one or more questions.

    One without a header is a .csv or .tsv; in one that is to be `labelled`, every question must
    have a label. Raises UserError: as `read_table`; a column that is not there, no question;
    RowError: a line with too few or too many fields, an empty choice, no label or one that is none
    of the choices.
    """
    errors = errors or RowErrors()

    def question(row: TableRow) -> ChoiceQuestion:
        row.require(_asked(columns, labelled=labelled))
        found = _question(row, columns)
        if labelled and found.label is None:
            raise RowError(f"{row.place}: found no label, allowed: one in each line")
        return found

    if isinstance(path, MemoryTable):
        stem = [] if columns.stem is None else [columns.stem]
        table = path.named([columns.text, *stem, *columns.choices])
    elif columns.header:
        table = read_table(path, delimiter=delimiter, errors=errors)
    else:
        table = _read_bare(path, delimiter, errors)
    questions = errors.kept(table, question)
    if not questions:
        (found,) = errors.note(path, kept=0) or (f"{path}: found no question",)
        raise UserError(f"{found}, allowed: one in each line")
    return questions


def _read_bare(path: Path, delimiter: Delimiter | None, errors: RowErrors) -> Iterator[TableRow]:
    """Yields the rows of a table without a header, with numbers for names."""
    if path.suffix not in (".csv", ".tsv"):
        raise UserError(
            f"{path}: found {path.suffix or 'no suffix'} with header: false, allowed: .csv, .tsv"
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


def _asked(columns: ChoiceColumns, *, labelled: bool) -> list[tuple[str, str | None]]:
    asked = [("task.text", columns.text), *(("task.choices", name) for name in columns.choices)]
    asked += [("task.stem", columns.stem), ("task.id", columns.id)]
    return [*asked, ("task.label", columns.label)] if labelled else asked


def _question(row: TableRow, columns: ChoiceColumns) -> ChoiceQuestion:
    choices = tuple(row.text(name) for name in columns.choices)
    for name, choice in zip(columns.choices, choices, strict=True):
        if not choice.strip():
            raise RowError(
                f'{row.place}: found an empty "{name}", allowed: {len(choices)} choices, as in '
                "every line"
            )
    stem = f"{row.text(columns.stem)} " if columns.stem else ""
    label = row.values.get(columns.label)
    used = (columns.text, columns.stem, columns.label, *columns.choices)
    own = row.values.get(columns.id or ID) if columns.id or ID not in used else None
    return ChoiceQuestion(
        id=None if own is None else str(own),
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
        raise RowError(
            f'{row.place}: found the label "{label}", which is {allowed.count(label)} of the '
            "choices, allowed: one of them"
        )
    others = [other for other, texts in names.items() if label in texts]
    hint = f"; did you mean label_is: {others[0]}?" if others else did_you_mean(label, allowed)
    raise RowError(f'{row.place}: found the label "{label}", allowed: {", ".join(allowed)}{hint}')
