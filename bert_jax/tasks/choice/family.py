"""Multiple choice: which of several texts goes on from another, or answers it."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import numpy as np
import pydantic
from etils import epath

from bert_jax.data.rows.assemble import assemble
from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.model.config import HeadsSection
from bert_jax.section import Section
from bert_jax.tasks.choice.file import ChoiceColumns, ChoiceFile, read_choices
from bert_jax.tasks.family import Encoded, Opening, Record
from bert_jax.tasks.ragged import encode_ragged
from bert_jax.text.tokenizer import SpecialIds, Tokenizer

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
    train: str | None = None
    dev: str | None = None
    test: str | None = None
    format: Literal["swag", "codah", "columns"] = "columns"
    text: str | None = None
    stem: str | None = None  # the column with which every choice begins, as SWAG's sent2
    choices: tuple[str, ...] | None = None
    label: str | None = None
    id: str | None = None  # None: questions are numbered from 0
    header: bool = True  # false: columns are "0", "1", …
    label_is: Literal["index", "column", "text"] | tuple[str, ...] = "index"

    @property
    def columns(self) -> ChoiceColumns:
        """What is read of each file."""
        if self.format != "columns":
            return _PRESETS[self.format]._replace(id=self.id)
        assert self.text is not None
        assert self.choices is not None
        assert self.label is not None
        return ChoiceColumns(
            text=self.text,
            stem=self.stem,
            choices=self.choices,
            label=self.label,
            id=self.id,
            header=self.header,
            label_is=self.label_is,
        )

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> MultipleChoiceSection:
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


class ChoiceSplit:
    """A table of questions; satisfies `Split`. A question is one row."""

    def __init__(self, file: ChoiceFile, tokenizer: Tokenizer, *, max_length: int) -> None:
        """Encodes the questions.

        Args:
            file: the table.
            tokenizer: of the run.
            max_length: pieces of a row, special ones included.
        """
        self._questions = file.questions
        self._special: SpecialIds = tokenizer.special
        self._max_length = max_length
        self._choices = len(file.questions[0].choices)
        self._texts = encode_ragged(tokenizer, (question.text for question in file.questions))
        self._endings = encode_ragged(
            tokenizer,
            itertools.chain.from_iterable(question.choices for question in file.questions),
        )

    @property
    def lengths(self) -> np.ndarray:
        """Pieces of the longest sequence of each row: int32 [rows]."""
        return np.minimum(self._full_lengths, self._max_length).astype(np.int32)

    @property
    def cut(self) -> int:
        """How many questions have a choice of which pieces are left out."""
        return int(np.sum(self._full_lengths > self._max_length))

    @property
    def examples(self) -> int:
        """How many questions there are."""
        return len(self._questions)

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

    def collect(self) -> ChoiceCollector:
        """Returns what gathers the choices."""
        return ChoiceCollector(self)

    def record(self, index: int, logits: np.ndarray) -> Record:
        """Returns the record of one question.

        Args:
            index: of the row.
            logits: [choices].
        """
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

    @property
    def _full_lengths(self) -> np.ndarray:
        endings = np.diff(self._endings.offsets).reshape(-1, self._choices)
        return np.diff(self._texts.offsets) + endings.max(axis=1) + 3


class ChoiceCollector:
    """Gathers a record for each question; satisfies `Collector`."""

    def __init__(self, split: ChoiceSplit) -> None:
        self._split = split
        self._records: list[Record | None] = [None] * split.examples

    def add(self, row: int, logits: np.ndarray) -> None:
        """Takes one row's logits: [choices]."""
        self._records[row] = self._split.record(row, logits)

    def records(self) -> list[Record]:
        """Returns a record for every question, in the order of the file.

        Raises:
            RuntimeError: a row was not added.
        """
        found = [record for record in self._records if record is not None]
        if len(found) < len(self._records):
            missing = len(self._records) - len(found)
            raise RuntimeError(f"{missing} of {len(self._records)} rows have no prediction")
        return found


@dataclasses.dataclass(frozen=True)
class ChoiceFamily:
    """A multiple choice task with its data opened; satisfies `Family`."""

    splits: Mapping[str, ChoiceSplit]
    notes: Sequence[str]
    heads: HeadsSection
    best_metric: str = "accuracy"
    class_weights: Sequence[float] | None = None

    def score(self, records: Sequence[Record]) -> dict[str, float]:
        """Returns the accuracy: the share of questions whose prediction is the label."""
        right = [record["label"] == record["prediction"] for record in records]
        return {"accuracy": float(np.mean(right))}

    def write_official(
        self, split: str, records: Sequence[Record], directory: Path
    ) -> Sequence[Path]:
        """Writes ``SPLIT.csv``: id, prediction (the number of the choice, from 0)."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["id", "prediction"])
        writer.writerows([record["id"], record["prediction"]] for record in records)
        path = directory / f"{split}.csv"
        write_whole(epath.Path(path), text.getvalue().encode())
        return [path]


def open_multiple_choice(section: MultipleChoiceSection, opening: Opening) -> ChoiceFamily:
    """Opens the tables.

    Args:
        section: the task.
        opening: what is wanted of it.

    Raises:
        UserError: a file that `read_choices` refuses, a role without a file.
    """
    splits: dict[str, ChoiceSplit] = {}
    notes: list[str] = []
    for role in opening.roles:
        paths = {"train": section.train, "dev": section.dev, "test": section.test}
        path = opening.input if role == "input" else paths[role]
        if path is None:
            raise UserError(f"task.{role}: found nothing, allowed: a table")
        file = read_choices(
            Path(path),
            section.columns,
            labels="required" if role in ("train", "dev") else "optional",
        )
        split = ChoiceSplit(file, opening.tokenizer, max_length=opening.max_length)
        splits[role] = split
        found = {
            "questions have no text": sum(not q.text.strip() for q in file.questions),
            f"questions are longer than {opening.max_length} pieces and are cut": split.cut,
            "questions have a label and others none: it is read as unlabelled": file.stray_labels,
        }
        notes += [f"{file.path}: {count} {what}" for what, count in found.items() if count]
    heads = HeadsSection(task="multiple_choice", mlm=False, next_sentence=False)
    return ChoiceFamily(splits, tuple(notes), heads)
