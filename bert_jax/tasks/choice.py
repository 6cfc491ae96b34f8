"""Multiple choice: selects the text that continues or answers another text.

Reads tables of questions: SWAG, CODAH, or a table with named columns.
"""

import csv
import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Self

import numpy as np
import pydantic

from bert_jax.data.row_errors import RowErrors
from bert_jax.data.rows.collate import assemble, encode_ragged, special_tokens
from bert_jax.data.tables import TableRow
from bert_jax.errors import SettingError, UserError, commas
from bert_jax.files.atomic import write_whole
from bert_jax.tasks import family
from bert_jax.tasks.choice_table import (
    ChoiceColumns,
    ChoiceQuestion,
    ChoiceTable,
    numbers_of,
    read_bare,
    read_choices,
)
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


class MultipleChoiceSection(family.RowsSection):
    """Tables of questions, with one row per question."""

    text_column = "text"

    kind: Literal["multiple_choice"] = "multiple_choice"
    format: Literal["swag", "codah", "columns"] = "columns"
    """`swag` and `codah` have fixed columns. `columns`: set `text`, `choices` and `label`."""
    text: str | None = None
    """Column of the question or context."""
    stem: str | None = None
    """Column with a text to prepend to every choice, such as SWAG's `sent2`."""
    choices: tuple[str, ...] | None = None
    """Columns of the choices. A single column has lists of choices, as in HellaSwag. The lists may
    differ in length, as in ARC."""
    label: str | None = None
    """Column of the correct choice."""
    header: bool = True
    """Whether the first line is a header. If not, the columns are named "0", "1", …"""
    label_is: Literal["index", "column", "text"] | tuple[str, ...] = "index"
    """Content of the column `label`: index (from 0), column or text of the correct choice. If it
    has other names, list them in the order of the choices, such as ["1", "2", "3"]."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.format != "columns":
            # Allow default values, because a resolved configuration contains them.
            own = (*_NEEDED, "stem", "header", "label_is")
            fields = type(self).model_fields
            if given := [name for name in own if getattr(self, name) != fields[name].default]:
                raise SettingError(
                    "choice.preset", f"set by format {self.format}. Remove it.", place=given[0]
                )
            return self
        for name in _NEEDED:
            if getattr(self, name) is None:
                raise SettingError("choice.column_missing", "missing. Set a column.", place=name)
        count = len(self.choices or ())
        if count < 1 or len({*(self.choices or ())}) != count:
            raise SettingError.wrong(
                "choice.columns", self.choices, "different columns or one of lists", place="choices"
            )
        least = count if count > 1 else 2
        names = self.label_is
        if isinstance(names, tuple) and (
            len({*names}) < least or (count > 1 and len({*names}) > count)
        ):
            raise SettingError.wrong(
                "choice.label_names", commas(names), f"{least} different names", place="label_is"
            )
        return self

    @property
    def columns(self) -> ChoiceColumns:
        """The columns to read."""
        found = {name: getattr(self, name) for name in ChoiceColumns._fields}
        return ChoiceColumns(**(found | _PRESETS.get(self.format, {})))

    def required(self, role: str) -> family.Columns:
        """Returns the columns of texts and ids, and of labels if the role needs them."""
        of = self.columns
        texts = [("task.text", of.text), ("task.stem", of.stem)]
        choices = [("task.choices", name) for name in of.choices]
        label = [("task.label", of.label)] if family.needs_labels(role) else []
        return [*texts, *choices, ("task.id", of.id), *label]

    def read(self, path: Path, errors: RowErrors) -> Iterator[TableRow]:
        """Returns the rows of a file, which may lack a header."""
        if self.columns.header:
            return super().read(path, errors)
        return read_bare(path, self.delimiter, errors)

    def open(self, request: family.DataRequest) -> family.Family:
        """Opens the tables.

        Raises UserError if a role has no file, if labels may count from 0 or from 1, or as
        `read_choices`.
        """
        splits: dict[str, ChoiceSplit] = {}
        tables: dict[str, ChoiceTable] = {}
        notes: list[str] = []
        for role in request.roles:
            path = request.source(self, role)
            rows, errors = self.rows(path, role)
            tables[role] = table = read_choices(
                rows,
                self.columns,
                self.required(role),
                labelled=family.needs_labels(role),
                errors=errors,
            )
            if not (questions := table.questions):
                raise family.no_rows(path, errors)
            splits[role] = split = ChoiceSplit(questions, request.tokenizer, request.max_length)
            notes += errors.note(path, kept=len(questions)) + family.count_notes(
                path, split.findings
            )
            fewest, most = table.widths
            if fewest < most:
                notes.append(f"{path}: questions have {fewest} to {most} choices")
        notes += self._check_numbers(tables)
        return family.Family(
            heads=family.task_heads("multiple_choice"),
            best_metric="accuracy",
            splits=splits,
            notes=tuple(notes),
            score=_score,
            write_official=_write_csv,
        )

    def _check_numbers(self, tables: Mapping[str, ChoiceTable]) -> list[str]:
        """Returns a note if no label is 0, since labels may count from 1.

        In a training set, raises UserError. A label 0 in one table shows how to read the others.
        """
        numbers = set[int]().union(*(table.numbers for table in tables.values()))
        if self.format != "columns" or not numbers or min(numbers) < 1:
            return []
        most = max(table.widths[1] for table in tables.values())
        error = UserError(
            "choice.first_number",
            f"found labels from {min(numbers)} on, but no 0. If they count from 0, set label_is: "
            f"{numbers_of(most, first=0)}. If they count from 1, set label_is: "
            f"{numbers_of(most, first=1)}.",
            place="task.label",
        )
        if "train" in tables:
            raise error
        return [] if "input" in tables else [str(error)]


class ChoiceSplit(family.Split):
    """The questions of a table. Each question is one row."""

    def __init__(
        self, questions: Sequence[ChoiceQuestion], tokenizer: Tokenizer, max_length: int
    ) -> None:
        self._questions, self._tokenizer, self._max_length = questions, tokenizer, max_length
        self.examples, self.fingerprint = len(questions), family.content_hash(questions)
        counts = np.array([len(question.choices) for question in questions])
        self._choices = int(counts.max())
        self._first = np.cumsum(counts) - counts  # index of each question's first choice
        self._texts = encode_ragged(tokenizer, (question.text for question in questions))
        self._endings = encode_ragged(
            tokenizer, itertools.chain.from_iterable(question.choices for question in questions)
        )
        endings = np.maximum.reduceat(np.diff(self._endings.offsets), self._first)
        lengths = np.diff(self._texts.offsets) + endings
        lengths += special_tokens(tokenizer, pair=True)
        self.lengths = np.minimum(lengths, max_length).astype(np.int32)
        self.findings = {
            "questions have no text": sum(not question.text.strip() for question in questions),
            f"questions are longer than {max_length} pieces and are truncated": (
                int(np.sum(lengths > max_length))
            ),
        }

    def row(self, index: int) -> family.Encoded:
        """Returns one sequence ``[CLS] text [SEP] choice [SEP]`` per choice.

        If other questions have more choices, the missing sequences are empty.
        """
        question = self._questions[index]
        text, first, count = self._texts[index].tolist(), self._first[index], len(question.choices)
        endings = [self._endings[at].tolist() for at in range(first, first + count)]
        ids, seconds, _ = zip(
            *(assemble(text, end, self._tokenizer, max_length=self._max_length) for end in endings),
            strict=True,
        )
        missing = self._choices - count
        targets = {} if question.label is None else {"label": question.label}
        return family.Encoded([*ids, *[[]] * missing], [*seconds, *[0] * missing], targets)

    def records(self, reduced: Sequence[np.ndarray], *, first: int = 0) -> list[family.Record]:
        """Returns records with the predicted index and the probability of each choice."""
        records = []
        for index, logits in enumerate(reduced, start=first):
            question = self._questions[index]
            logits = logits[: len(question.choices)]
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


def _score(records: Sequence[family.Record]) -> dict[str, float]:
    return {"accuracy": float(np.mean([r["label"] == r["prediction"] for r in records]))}


def _write_csv(split: str, records: Sequence[family.Record], directory: Path) -> Sequence[Path]:
    """Writes ``SPLIT.csv`` with columns `id` and `prediction` (index of the choice)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "prediction"])
    writer.writerows([record["id"], record["prediction"]] for record in records)
    path = directory / f"{split}.csv"
    write_whole(path, text.getvalue())
    return [path]
