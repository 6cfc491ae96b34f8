"""Sequence classification and regression: examples → rows → records.

The task families `glue` and `table` share this module.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_jax.data.rows.collate import assemble, encode_ragged, special_tokens
from bert_jax.data.tables import RowErrors
from bert_jax.tasks.family import (
    DataRequest,
    Encoded,
    Family,
    Record,
    Split,
    content_hash,
    count_notes,
    shown_lines,
    task_heads,
)
from bert_jax.tasks.labels import Labelling, Target, TextRow, Weighting
from bert_jax.tasks.scores import figures
from bert_jax.text.tokenizer import Tokenizer


class TextExample(NamedTuple):
    """One or two texts with a target."""

    id: int | str
    text: str
    pair: str | None
    target: Target
    line: int  # line number in the file, from 1


class SequenceSplit(Split):
    """The rows of one file: ``[CLS] text [SEP]`` or ``[CLS] text [SEP] pair [SEP]``."""

    def __init__(
        self,
        texts: Sequence[TextExample],
        *,
        labelling: Labelling,
        tokenizer: Tokenizer,
        max_length: int,
    ) -> None:
        """Encodes all texts. If a pair is too long, truncates the longer text piece by piece."""
        self._texts, self._labelling = texts, labelling
        self.examples, self.fingerprint = len(texts), content_hash(texts)
        self._tokenizer, self._max_length = tokenizer, max_length
        self._firsts = encode_ragged(tokenizer, (example.text for example in texts))
        self._seconds = encode_ragged(tokenizer, (example.pair or "" for example in texts))
        sizes = [special_tokens(tokenizer, pair=example.pair is not None) for example in texts]
        lengths = np.diff(self._firsts.offsets) + np.diff(self._seconds.offsets)
        lengths += np.asarray(sizes, np.int64)
        self.lengths = np.minimum(lengths, max_length).astype(np.int32)
        empty = [
            example.line
            for example in texts
            if not example.text.strip() or (example.pair is not None and not example.pair.strip())
        ]
        of_all = f"of {len(texts):,} texts are"
        self.findings = {
            f"{of_all} longer than {max_length} pieces and truncated": int(
                (lengths > max_length).sum()
            ),
            f"{of_all} empty {shown_lines(empty)}": len(empty),
        }

    def row(self, index: int) -> Encoded:
        """Returns one row. If it is labelled, its target is "label".

        The target is an int (single-label), a float (regression) or a 0/1 vector, float32 [labels]
        (multi-label).
        """
        example = self._texts[index]
        made = assemble(
            self._firsts[index].tolist(),
            None if example.pair is None else self._seconds[index].tolist(),
            self._tokenizer,
            max_length=self._max_length,
        )
        target: np.ndarray | int | float | None
        if isinstance(example.target, frozenset):
            target = np.zeros(len(self._labelling.names), np.float32)
            target[sorted(example.target)] = 1
        else:
            target = example.target
        return Encoded((made.ids,), (made.second,), {} if target is None else {"label": target})

    def records(self, reduced: Sequence[np.ndarray], *, first: int = 0) -> list[Record]:
        """Returns records with predictions and, except in a regression, probabilities."""
        # Import here: it takes 0.1 s, and reading a configuration imports this module.
        from scipy import special

        logits = np.asarray(reduced, np.float64).reshape(len(reduced), -1)
        if self._labelling.problem == "regression":
            predicted = [{"prediction": value} for value in logits[:, 0].tolist()]
        elif self._labelling.problem == "multi_label":
            predicted = [self._several(row) for row in special.expit(logits).tolist()]
        else:
            predicted = [self._one(row) for row in special.softmax(logits, axis=-1).tolist()]
        texts = self._texts[first : first + len(reduced)]
        return [
            self._base(example) | prediction
            for example, prediction in zip(texts, predicted, strict=True)
        ]

    def _one(self, probabilities: list[float]) -> Record:
        """Predicts the most probable label, the first one in a tie."""
        named = dict(zip(self._labelling.names, probabilities, strict=True))
        return {"prediction": max(named, key=named.__getitem__), "probabilities": named}

    def _several(self, probabilities: list[float]) -> Record:
        named = dict(zip(self._labelling.names, probabilities, strict=True))
        threshold = self._labelling.threshold
        chosen = [name for name, probability in named.items() if probability >= threshold]
        return {"prediction": chosen, "probabilities": named}

    def _base(self, example: TextExample) -> Record:
        pair = {} if example.pair is None else {"pair": example.pair}
        label = self._labelling.spell(example.target)
        return {"id": example.id, "text": example.text, **pair, "label": label}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceTask:
    """A sequence classification task, without its data."""

    labelling: Labelling
    keys: tuple[str, ...]  # keys of `figures`; the first ranks checkpoints
    class_weights: Weighting  # see `Labelling.weights`
    write_official: Callable[[str, Sequence[Record], Path], Sequence[Path]]  # see `Family`
    positive: str | None = None  # label whose F1 is the score "f1"

    def examples(
        self, rows: Sequence[TextRow], *, required: bool, errors: RowErrors
    ) -> list[TextExample]:
        """Returns the examples of a file. Raises RowError as `Labelling.target`."""

        def example(row: TextRow) -> TextExample:
            target = self.labelling.target(row, required=required)
            return TextExample(row.id, row.text, row.pair, target, row.line)

        return errors.kept(rows, example)

    def family(
        self,
        examples: Mapping[str, Sequence[TextExample]],
        request: DataRequest,
        *,
        notes: Sequence[str],
    ) -> Family:
        """Returns the task with its splits. Computes class weights if there is a split "train".

        `notes` precede the notes about texts.
        """
        labelling, notes = self.labelling, [*notes]
        splits: dict[str, Split] = {}
        for name, found in examples.items():
            splits[name] = split = SequenceSplit(
                found,
                labelling=labelling,
                tokenizer=request.tokenizer,
                max_length=request.max_length,
            )
            notes += count_notes(name, split.findings)
        weights = None
        if "train" in examples:
            targets = (example.target for example in examples["train"])
            weights = labelling.weights(self.class_weights, targets)
        return Family(
            heads=task_heads(
                "sequence_classification",
                labels=labelling.names,
                integer_labels=labelling.integers,
                problem=labelling.problem,
            ),
            best_metric=self.keys[0],
            class_weights=weights,
            splits=splits,
            notes=tuple(notes),
            score=self._score,
            write_official=self.write_official,
        )

    def _score(self, records: Sequence[Record]) -> dict[str, float]:
        """Returns the scores of the labelled records, {} if there are none."""
        labelled = [record for record in records if record["label"] is not None]
        return figures(labelled, self.keys, positive=self.positive) if labelled else {}
