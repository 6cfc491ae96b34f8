"""Sequence classification and regression: examples → rows → records.

GLUE's tasks (`glue`) and tables of the user's own (`table`) share it.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_jax.data.row_errors import RowErrors
from bert_jax.data.rows.collate import assemble, encode_ragged
from bert_jax.tasks.columns import TextRow
from bert_jax.tasks.family import (
    Collector,
    DataRequest,
    Encoded,
    Family,
    Record,
    content_hash,
    count_notes,
    shown_lines,
)
from bert_jax.tasks.labels import Labelling, Target, Weighting, target_of, weights_of
from bert_jax.tasks.scores import figures
from bert_jax.text.tokenizer import Tokenizer


class TextExample(NamedTuple):
    """One text, or two, with a target."""

    id: int | str
    text: str
    pair: str | None
    target: Target
    line: int  # in its file, from 1


class SequenceSplit:
    """The rows of one file: ``[CLS] text [SEP]`` or ``[CLS] text [SEP] pair [SEP]``."""

    def __init__(
        self,
        texts: Sequence[TextExample],
        *,
        labelling: Labelling,
        tokenizer: Tokenizer,
        max_length: int,
    ) -> None:
        """Encodes every text once, to one array of ids. Of a long pair the longer text is cut."""
        self.texts, self._labelling = texts, labelling
        self.examples, self.fingerprint = len(texts), content_hash(texts)
        self._special, self._max_length = tokenizer.special, max_length
        self._firsts = encode_ragged(tokenizer, (example.text for example in texts))
        self._seconds = encode_ragged(tokenizer, (example.pair or "" for example in texts))
        special = np.asarray([2 if example.pair is None else 3 for example in texts], np.int64)
        lengths = np.diff(self._firsts.offsets) + np.diff(self._seconds.offsets) + special
        self.lengths: np.ndarray = np.minimum(lengths, max_length).astype(np.int32)
        self.cut = int((lengths > max_length).sum())  # texts that were longer

    def row(self, index: int) -> Encoded:
        """Returns one row, its target under "label" where it is known.

        The target is an int for one label, float32 [labels] of 0 and 1 for several, a float for a
        regression.
        """
        example = self.texts[index]
        made = assemble(
            self._firsts[index].tolist(),
            None if example.pair is None else self._seconds[index].tolist(),
            self._special,
            max_length=self._max_length,
        )
        target: np.ndarray | int | float | None
        if isinstance(example.target, frozenset):
            target = np.zeros(len(self._labelling.names), np.float32)
            target[sorted(example.target)] = 1
        else:
            target = example.target
        return Encoded((made.ids,), (made.second,), {} if target is None else {"label": target})

    def collect(self) -> Collector:
        """Returns a collector of this split's predictions."""
        return Collector(len(self.texts), reduce=self._checked, finish=self._records)

    def _checked(self, row: int, logits: np.ndarray) -> np.ndarray:
        allowed = (len(self._labelling.names),)
        if logits.shape != allowed:
            raise ValueError(f"logits of row {row}: found {logits.shape}, allowed: {allowed}")
        return logits

    def _records(self, found: Sequence[np.ndarray]) -> list[Record]:
        # A tenth of a second, which reading a configuration need not take.
        from scipy import special

        logits = np.asarray(found, np.float64).reshape(len(found), -1)
        if self._labelling.problem == "regression":
            predicted = [{"prediction": value} for value in logits[:, 0].tolist()]
        elif self._labelling.problem == "multi_label":
            predicted = [self._several(row) for row in special.expit(logits).tolist()]
        else:
            predicted = [self._one(row) for row in special.softmax(logits, axis=-1).tolist()]
        return [
            self._base(example) | prediction
            for example, prediction in zip(self.texts, predicted, strict=True)
        ]

    def _one(self, probabilities: list[float]) -> Record:
        """The most probable label; the first of equals."""
        names = self._labelling.names
        best = max(range(len(names)), key=probabilities.__getitem__)
        named = dict(zip(names, probabilities, strict=True))
        return {"prediction": names[best], "probabilities": named}

    def _several(self, probabilities: list[float]) -> Record:
        named = dict(zip(self._labelling.names, probabilities, strict=True))
        threshold = self._labelling.threshold
        chosen = [name for name, probability in named.items() if probability >= threshold]
        return {"prediction": chosen, "probabilities": named}

    def _base(self, example: TextExample) -> Record:
        pair = {} if example.pair is None else {"pair": example.pair}
        label = self._labelling.spell(example.target)
        return {"id": example.id, "text": example.text, **pair, "label": label}


def notes_of(name: str, split: SequenceSplit, *, max_length: int) -> list[str]:
    """Returns what an owner of the data should know of one split, a line each."""
    empty = [
        example.line
        for example in split.texts
        if not example.text.strip() or (example.pair is not None and not example.pair.strip())
    ]
    of_all = f"of {len(split.texts):,} texts are"
    found = {
        f"{of_all} longer than {max_length} pieces: cut": split.cut,
        f"{of_all} empty {shown_lines(empty)}": len(empty),
    }
    return count_notes(name, found)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceTask:
    """A task of sequence classification, without its data."""

    labelling: Labelling  # the meaning of the head's outputs
    column: str  # of the labels, for messages
    keys: tuple[str, ...]  # of `bert_jax.tasks.scores.figures`; the first ranks checkpoints
    class_weights: Weighting  # see `weights_of`
    write_official: Callable[[str, Sequence[Record], Path], Sequence[Path]]  # see `Family`
    positive: str | None = None  # the label that "f1" is of
    separator: str = "|"  # between several labels in a text

    def examples(
        self, rows: Sequence[TextRow], *, required: bool, errors: RowErrors
    ) -> list[TextExample]:
        """Returns the examples of a file.

        Where it is `required`, each needs a label. Raises RowError: a label that is missing where
        it is required, or unknown.
        """
        target = functools.partial(
            target_of,
            labelling=self.labelling,
            column=self.column,
            separator=self.separator,
            required=required,
        )
        return errors.kept(
            rows, lambda row: TextExample(row.id, row.text, row.pair, target(row), row.line)
        )

    def family(
        self,
        examples: Mapping[str, Sequence[TextExample]],
        request: DataRequest,
        *,
        notes: Sequence[str],
    ) -> Family:
        """Returns the task with the examples of each split; class weights need "train" among them.

        The notes on the data come before those on its texts.
        """
        splits = {
            name: SequenceSplit(
                found,
                labelling=self.labelling,
                tokenizer=request.tokenizer,
                max_length=request.max_length,
            )
            for name, found in examples.items()
        }
        more = [
            note
            for name, split in splits.items()
            for note in notes_of(name, split, max_length=request.max_length)
        ]
        weights = None
        if "train" in examples:
            targets = (example.target for example in examples["train"])
            weights = weights_of(self.class_weights, self.labelling, targets)
        return Family(
            heads=self.labelling.heads,
            best_metric=self.keys[0],
            class_weights=weights,
            splits=splits,
            notes=(*notes, *more),
            score=self._score,
            write_official=self.write_official,
        )

    def _score(self, records: Sequence[Record]) -> dict[str, float]:
        """Returns the figures of those records that have a label; {} if none has."""
        labelled = [record for record in records if record["label"] is not None]
        return figures(labelled, self.keys, positive=self.positive) if labelled else {}
