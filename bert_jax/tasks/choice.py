"""Multiple choice: selects the text that continues or answers another text.

Reads tables of questions: SWAG, CODAH, or a table with named columns.
"""

import csv
import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self

import numpy as np
import pydantic

from bert_jax.data.memory_table import MemoryTable
from bert_jax.data.row_errors import OnError, RowError, RowErrors
from bert_jax.data.rows.collate import assemble, encode_ragged, special_tokens
from bert_jax.data.tables import Delimiter, TableRow, ragged, read_fields, read_table
from bert_jax.errors import SettingError, UserError
from bert_jax.files.atomic import write_whole
from bert_jax.files.read import is_whole
from bert_jax.tasks.family import (
    DataRequest,
    Encoded,
    Family,
    FilesSection,
    Record,
    Split,
    content_hash,
    count_notes,
    needs_labels,
    no_rows,
    row_errors,
    task_heads,
)
from bert_jax.tasks.labels import UNKNOWN, canonical, number_of, unknown_label
from bert_jax.text.tokenizer import Tokenizer

# SWAG: data/train.csv of github.com/rowanz/swagaf. CODAH: data/full_data.tsv of
# github.com/Websail-NU/CODAH, with columns category, prompt, four answers, index of the correct
# answer.
_PRESETS: Final[dict[str, dict[str, Any]]] = {
    "swag": {
        "text": "sent1",
        "stem": "sent2",
        "choices": ("ending0", "ending1", "ending2", "ending3"),
        "label": "label",
    },
    "codah": {"text": "1", "choices": ("2", "3", "4", "5"), "label": "6", "header": False},
}
_NEEDED: Final = ("text", "choices", "label")


class MultipleChoiceSection(FilesSection):
    """Tables of questions, with one row per question."""

    kind: Literal["multiple_choice"] = "multiple_choice"
    format: Literal["swag", "codah", "columns"] = "columns"
    """`swag` and `codah` have fixed columns. `columns`: set `text`, `choices` and `label`."""
    text: str | None = None
    """Column of the question or context."""
    stem: str | None = None
    """Column with a text to prepend to every choice, such as SWAG's `sent2`."""
    choices: tuple[str, ...] | None = None
    """Columns of the choices. A single column has lists of choices, as in HellaSwag."""
    label: str | None = None
    """Column of the correct choice."""
    id: str | None = None
    """Column of the ids. By default, `id` if that column exists, otherwise the row index."""
    delimiter: Delimiter | None = None
    """Separator of columns. By default, a comma in a .csv and a tab in a .tsv."""
    on_error: OnError = "stop"
    """`skip`: skip and count malformed rows. See `on_error` of `table`."""
    header: bool = True
    """Whether the first line is a header. If not, the columns are named "0", "1", …"""
    label_is: Literal["index", "column", "text"] | tuple[str, ...] = "index"
    """Content of the column `label`: index, column or text of the correct choice. If it has other
    names, list them in the order of the choices."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.format != "columns":
            # Allow default values, because a resolved configuration contains them.
            own = (*_NEEDED, "stem", "header", "label_is")
            fields = type(self).model_fields
            if given := [name for name in own if getattr(self, name) != fields[name].default]:
                raise SettingError(
                    "choice.preset",
                    'set by format "{format}" already. Remove this setting.',
                    place=given[0],
                    format=self.format,
                )
            return self
        for name in _NEEDED:
            if getattr(self, name) is None:
                raise SettingError(
                    "choice.column_missing", 'missing, but format "columns" needs it', place=name
                )
        count = len(self.choices or ())
        if count < 1 or len({*(self.choices or ())}) != count:
            raise SettingError(
                "choice.columns",
                "found {found}, allowed: two or more different columns, or one column of lists",
                place="choices",
                found=self.choices,
            )
        least = count if count > 1 else 2
        if isinstance(self.label_is, tuple) and (
            len({*self.label_is}) < least or (count > 1 and len({*self.label_is}) > count)
        ):
            raise SettingError(
                "choice.label_names",
                "found {found}, allowed: {count} different names, one for each choice",
                place="label_is",
                found=self.label_is,
                count=least,
            )
        return self

    @property
    def columns(self) -> "ChoiceColumns":
        """The columns to read."""
        found = {name: getattr(self, name) for name in ChoiceColumns._fields}
        return ChoiceColumns(**(found | _PRESETS.get(self.format, {})))

    def open(self, request: DataRequest) -> Family:
        """Opens the tables. Raises UserError if a role has no file, or as `read_choices`."""
        splits: dict[str, ChoiceSplit] = {}
        notes: list[str] = []
        for role in request.roles:
            path = request.source(self, role)
            in_memory = isinstance(path, MemoryTable)
            errors = RowErrors() if in_memory else row_errors(self.on_error, role)
            questions = read_choices(path, self, labelled=needs_labels(role), errors=errors)
            splits[role] = split = ChoiceSplit(questions, request.tokenizer, request.max_length)
            notes += errors.note(path, kept=len(questions)) + count_notes(path, split.findings)
        return Family(
            heads=task_heads("multiple_choice"),
            best_metric="accuracy",
            splits=splits,
            notes=tuple(notes),
            score=_score,
            write_official=_write_csv,
        )


class ChoiceColumns(NamedTuple):
    """Columns of a table; see `MultipleChoiceSection`."""

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


class ChoiceSplit(Split):
    """The questions of a table. Each question is one row."""

    def __init__(
        self, questions: Sequence[ChoiceQuestion], tokenizer: Tokenizer, max_length: int
    ) -> None:
        self._questions, self._tokenizer, self._max_length = questions, tokenizer, max_length
        self.examples, self.fingerprint = len(questions), content_hash(questions)
        self._choices = len(questions[0].choices)
        self._texts = encode_ragged(tokenizer, (question.text for question in questions))
        self._endings = encode_ragged(
            tokenizer, itertools.chain.from_iterable(question.choices for question in questions)
        )
        endings = np.diff(self._endings.offsets).reshape(-1, self._choices)
        lengths = np.diff(self._texts.offsets) + endings.max(axis=1)
        lengths += special_tokens(tokenizer, pair=True)
        self.lengths = np.minimum(lengths, max_length).astype(np.int32)
        self.findings = {
            "questions have no text": sum(not question.text.strip() for question in questions),
            f"questions are longer than {max_length} pieces and are truncated": (
                int(np.sum(lengths > max_length))
            ),
        }

    def row(self, index: int) -> Encoded:
        """Returns one sequence ``[CLS] text [SEP] choice [SEP]`` per choice."""
        text, first = self._texts[index].tolist(), index * self._choices
        endings = [self._endings[at].tolist() for at in range(first, first + self._choices)]
        ids, seconds, _ = zip(
            *(assemble(text, end, self._tokenizer, max_length=self._max_length) for end in endings),
            strict=True,
        )
        label = self._questions[index].label
        return Encoded(ids, seconds, {} if label is None else {"label": label})

    def records(self, reduced: Sequence[np.ndarray]) -> list[Record]:
        """Returns records with the predicted index and the probability of each choice."""
        records = []
        for index, (question, logits) in enumerate(zip(self._questions, reduced, strict=True)):
            weights = np.exp(logits.astype(np.float64) - np.max(logits))
            records.append(
                {
                    "id": index if question.id is None else question.id,
                    "text": question.text,
                    "choices": list(question.choices),
                    "label": question.label,
                    "prediction": int(np.argmax(logits)),
                    "probabilities": (weights / weights.sum()).tolist(),
                }
            )
        return records


def _score(records: Sequence[Record]) -> dict[str, float]:
    return {"accuracy": float(np.mean([r["label"] == r["prediction"] for r in records]))}


def _write_csv(split: str, records: Sequence[Record], directory: Path) -> Sequence[Path]:
    """Writes ``SPLIT.csv`` with columns `id` and `prediction` (index of the choice)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "prediction"])
    writer.writerows([record["id"], record["prediction"]] for record in records)
    path = directory / f"{split}.csv"
    write_whole(path, text.getvalue())
    return [path]


def read_choices(
    path: Path | MemoryTable, section: MultipleChoiceSection, *, labelled: bool, errors: RowErrors
) -> list[ChoiceQuestion]:
    """Reads a table of questions. If `labelled` is set, every question must have a label.

    Raises UserError if a column is missing, if the table is empty, or as `read_table`. Raises
    RowError for a row with a wrong number of fields, an empty choice, or a missing or unknown
    label.
    """
    columns = section.columns
    required = [("task.text", columns.text), *(("task.choices", name) for name in columns.choices)]
    required += [("task.stem", columns.stem), ("task.id", columns.id)]
    required += [("task.label", columns.label)] if labelled else []

    width: int | None = None  # number of choices in every row

    def question(row: TableRow) -> ChoiceQuestion:
        nonlocal width
        row.require(required)
        found = _question(row, columns)
        width = width or len(found.choices)
        if len(found.choices) != width:
            raise RowError(
                "choice.count",
                "found {found} choices, allowed: {allowed}, as in the rows before",
                place=row.place,
                found=len(found.choices),
                allowed=width,
            )
        if labelled and found.label is None:
            raise RowError(
                "choice.no_label", "found no label, allowed: one in each row", place=row.place
            )
        return found

    table: Iterable[TableRow]
    if isinstance(path, MemoryTable):
        stem = [] if columns.stem is None else [columns.stem]
        table = path.named([columns.text, *stem, *columns.choices])
    elif columns.header:
        table = read_table(path, delimiter=section.delimiter, errors=errors)
    else:
        table = _read_bare(path, section.delimiter, errors)
    questions = errors.kept(table, question)
    if not questions:
        raise no_rows(path, errors)
    return questions


def _read_bare(path: Path, delimiter: Delimiter | None, errors: RowErrors) -> Iterator[TableRow]:
    """Yields the rows of a table without a header. Columns are named "0", "1", and so on."""
    if path.suffix not in (".csv", ".tsv"):
        raise UserError(
            "choice.header",
            "found {found} with header: false, allowed: .csv, .tsv",
            place=path,
            found=path.suffix or "no suffix",
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


def _question(row: TableRow, columns: ChoiceColumns) -> ChoiceQuestion:
    names, choices = columns.choices, tuple[str, ...]()
    if names[1:]:
        choices = tuple(row.text(name) for name in names)
    else:
        choices, names = _listed(row, names[0])
    for name, choice in zip(names, choices, strict=True):
        if not choice.strip():
            raise RowError(
                "choice.empty",
                'found an empty "{column}", allowed: {choices} choices in every row',
                place=row.place,
                column=name,
                choices=len(choices),
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
        label=None if label in (None, "") else _label(row, label, choices, columns, names),
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
        raise RowError(
            "choice.list",
            'column "{column}": found {found:.60}, allowed: a list of two or more texts',
            place=row.place,
            column=column,
            found=repr(found),
        )
    return tuple(texts), tuple(map(str, names or range(len(texts))))


def _label(
    row: TableRow,
    found: Any,
    choices: tuple[str, ...],
    columns: ChoiceColumns,
    own_names: tuple[str, ...],
) -> int:
    """Returns the index of a label. `own_names` are the columns or names of the row's choices."""
    # pandas stores whole numbers as 1.0 if some are missing.
    label = canonical(str(found).strip()) if columns.label_is == "index" else str(found)
    names = {
        "index": tuple(str(number) for number in range(len(choices))),
        "column": own_names,
        "text": choices,
    }
    kind = columns.label_is
    numbered = all(map(is_whole, own_names))  # a number is then the name of a choice
    if kind == "index" and not columns.choices[1:] and (numbered or label in own_names):
        kind = "column"  # the row names its choices
    allowed = names[kind] if isinstance(kind, str) else kind
    if allowed.count(label) == 1:
        return allowed.index(label)
    place = f'{row.place}: column "{columns.label}"'
    if label in allowed:
        raise RowError(
            "choice.label_ambiguous",
            'found the label "{found}", which is the text of {times} choices, allowed: the text of '
            "one choice",
            place=place,
            found=label,
            times=allowed.count(label),
        )
    others = [other for other, texts in names.items() if label in texts]
    hint = f"; did you mean label_is: {others[0]}?" if others else None
    raise unknown_label(label, allowed, place=place, hint=hint)
