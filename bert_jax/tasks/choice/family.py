"""Multiple choice: which of several texts continues another, or answers it."""

import csv
import io
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, Self

import numpy as np
import pydantic
from etils import epath

from bert_jax.data.memory_table import MemoryTable
from bert_jax.data.row_errors import OnError, RowErrors
from bert_jax.data.rows.collate import assemble, encode_ragged
from bert_jax.data.tables import Delimiter
from bert_jax.files.atomic import write_whole
from bert_jax.model.config import HeadsSection
from bert_jax.section import DataPathText, Section
from bert_jax.tasks.choice.file import ChoiceColumns, ChoiceQuestion, read_choices
from bert_jax.tasks.family import (
    Collector,
    DataRequest,
    Encoded,
    Family,
    Record,
    content_hash,
    count_notes,
    needs_labels,
    row_errors,
)
from bert_jax.text.tokenizer import Tokenizer

# SWAG (github.com/rowanz/swagaf, data/train.csv) and CODAH (github.com/Websail-NU/CODAH,
# data/full_data.tsv: category, prompt, four answers, number of the right one).
_PRESETS: Final = {
    "swag": ChoiceColumns(
        text="sent1",
        stem="sent2",
        choices=("ending0", "ending1", "ending2", "ending3"),
        label="label",
    ),
    "codah": ChoiceColumns(text="1", choices=("2", "3", "4", "5"), label="6", header=False),
}


class MultipleChoiceSection(Section):
    """Tables of questions. `format` "columns" names what the presets know."""

    kind: Literal["multiple_choice"] = "multiple_choice"
    """This family."""
    train: DataPathText | None = None
    """A table."""
    dev: DataPathText | None = None
    """Likewise; picks the best checkpoint."""
    test: DataPathText | None = None
    """Likewise, with labels or without."""
    format: Literal["swag", "codah", "columns"] = "columns"
    """`swag` and `codah` know their columns; with `columns` they are named below."""
    text: str | None = None
    """Column of the question or context."""
    stem: str | None = None
    """Column with which every choice begins, as SWAG's `sent2`."""
    choices: tuple[str, ...] | None = None
    """Columns of the choices."""
    label: str | None = None
    """Column of the right one."""
    id: str | None = None
    """Column. None: the column `id` if there is one; else questions are numbered from 0."""
    delimiter: Delimiter | None = None
    """Between the columns of a .csv or .tsv. None: a comma or a tab."""
    on_error: OnError = "stop"
    """`skip`: malformed rows are skipped and counted, see `table`."""
    header: bool = True
    """Whether the first line names the columns; else they are "0", "1", …"""
    label_is: Literal["index", "column", "text"] | tuple[str, ...] = "index"
    """What `label` holds: the choice's index, its column, its text, or one of these names."""

    @property
    def columns(self) -> ChoiceColumns:
        """What is read of each file."""
        if self.format != "columns":
            return _PRESETS[self.format]._replace(id=self.id)
        return ChoiceColumns(**{name: getattr(self, name) for name in ChoiceColumns._fields})

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        needed = ("text", "choices", "label")
        if self.format != "columns":
            # By value: a resolved configuration spells out what was not set.
            own = (*needed, "stem", "header", "label_is")
            fields = type(self).model_fields
            if given := [name for name in own if getattr(self, name) != fields[name].default]:
                raise ValueError(f"{given[0]}: found with format {self.format}, which has its own")
            return self
        for name in needed:
            if getattr(self, name) is None:
                raise ValueError(f"{name}: found nothing, allowed: names of columns")
        count = len(self.choices or ())
        if count < 2 or len({*(self.choices or ())}) != count:
            raise ValueError("choices: allowed: two or more different columns")
        if isinstance(self.label_is, tuple) and len({*self.label_is}) != count:
            raise ValueError(f"label_is: allowed: {count} different names, as there are choices")
        return self

    def open(self, request: DataRequest) -> Family:
        """Opens tables; UserError: a file that `read_choices` refuses, a role without a file."""
        splits: dict[str, ChoiceSplit] = {}
        notes: list[str] = []
        for role in request.roles:
            path = request.source(self, role)
            errors = row_errors(self.on_error, role)
            questions = read_choices(
                path,
                self.columns,
                labelled=needs_labels(role),
                delimiter=self.delimiter,
                errors=RowErrors() if isinstance(path, MemoryTable) else errors,
            )
            splits[role] = split = ChoiceSplit(
                questions, request.tokenizer, max_length=request.max_length
            )
            found = {
                "questions have no text": sum(not q.text.strip() for q in questions),
                f"questions are longer than {request.max_length} pieces and are cut": split.cut,
            }
            notes += errors.note(path, kept=len(questions)) + count_notes(path, found)
        return Family(
            heads=HeadsSection(task="multiple_choice", mlm=False, next_sentence=False),
            best_metric="accuracy",
            splits=splits,
            notes=tuple(notes),
            score=_score,
            write_official=_write_csv,
        )


class ChoiceSplit:
    """A table of questions, one row each; satisfies `Split`."""

    def __init__(
        self, questions: Sequence[ChoiceQuestion], tokenizer: Tokenizer, *, max_length: int
    ) -> None:
        """Encodes one or more questions; `max_length` counts special pieces too."""
        self._questions, self._special, self._max_length = questions, tokenizer.special, max_length
        self.examples, self.fingerprint = len(questions), content_hash(questions)
        self._choices = len(questions[0].choices)
        self._texts = encode_ragged(tokenizer, (question.text for question in questions))
        self._endings = encode_ragged(
            tokenizer, itertools.chain.from_iterable(question.choices for question in questions)
        )
        endings = np.diff(self._endings.offsets).reshape(-1, self._choices)
        lengths = np.diff(self._texts.offsets) + endings.max(axis=1) + 3
        # Pieces of the longest sequence of each row.
        self.lengths: np.ndarray = np.minimum(lengths, max_length).astype(np.int32)
        self.cut = int(np.sum(lengths > max_length))  # questions with a choice that was longer

    def row(self, index: int) -> Encoded:
        """Returns a question: ``[CLS] text [SEP] choice [SEP]`` for each of its choices."""
        text = self._texts[index].tolist()
        first = index * self._choices
        sequences = [
            assemble(
                text, self._endings[ending].tolist(), self._special, max_length=self._max_length
            )
            for ending in range(first, first + self._choices)
        ]
        label = self._questions[index].label
        return Encoded(
            [sequence.ids for sequence in sequences],
            [sequence.second for sequence in sequences],
            {} if label is None else {"label": label},
        )

    def collect(self) -> Collector:
        """Returns a collector of the choices."""
        return Collector(len(self._questions), reduce=self._record, finish=list)

    def _record(self, index: int, logits: np.ndarray) -> Record:
        if logits.shape != (self._choices,):
            raise ValueError(f"logits of row {index}: found {logits.shape}, not ({self._choices},)")
        question = self._questions[index]
        weights = np.exp(logits.astype(np.float64) - np.max(logits))
        return {
            "id": index if question.id is None else question.id,
            "text": question.text,
            "choices": list(question.choices),
            "label": question.label,
            "prediction": int(np.argmax(logits)),
            "probabilities": (weights / weights.sum()).tolist(),
        }


def _score(records: Sequence[Record]) -> dict[str, float]:
    return {"accuracy": float(np.mean([r["label"] == r["prediction"] for r in records]))}


def _write_csv(split: str, records: Sequence[Record], directory: Path) -> Sequence[Path]:
    """Writes ``SPLIT.csv``: id, prediction (the number of the choice, from 0)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "prediction"])
    writer.writerows([record["id"], record["prediction"]] for record in records)
    path = directory / f"{split}.csv"
    write_whole(epath.Path(path), text.getvalue().encode())
    return [path]
