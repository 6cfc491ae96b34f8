"""One label, several labels or a number for a text or a pair of texts: examples → rows → records.

What the benchmarks' tasks (`glue`) and a table of one's own (`table`) share.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from bert_jax.data.rows.assemble import assemble
from bert_jax.errors import RunStopped
from bert_jax.model.config import HeadsSection, ProblemName
from bert_jax.tasks.family import Encoded, Record, Split
from bert_jax.tasks.ragged import encode_ragged
from bert_jax.text.tokenizer import Tokenizer

# A label's number in `Labelling.names`, those of several labels, a number to regress on, or
# nothing known.
Target: TypeAlias = int | frozenset[int] | float | None

NAMED_LINES: Final = 10  # in a note


class Example(NamedTuple):
    """One text, or two, and what is known of it."""

    id: int | str
    text: str
    pair: str | None
    target: Target
    line: int  # in its file, from 1


class Labelling(NamedTuple):
    """What the outputs of the head mean."""

    problem: ProblemName
    names: tuple[str, ...]  # in the order of the logits; of a regression its one number's
    threshold: float = 0.5  # of several labels: predicted from this probability on

    @property
    def heads(self) -> HeadsSection:
        """The model's heads: a pooled [CLS] and on it the classifier."""
        return HeadsSection(
            pooler=True,
            mlm=False,
            next_sentence=False,
            task="sequence_classification",
            labels=self.names,
            problem=self.problem,
        )


class SequenceSplit:
    """The rows of one file: ``[CLS] text [SEP]`` or ``[CLS] text [SEP] pair [SEP]``."""

    def __init__(
        self,
        examples: Sequence[Example],
        *,
        labelling: Labelling,
        tokenizer: Tokenizer,
        max_length: int,
    ) -> None:
        """Encodes every text once; ids are kept as one array, 4 bytes each.

        Args:
            examples: in the order of the file.
            labelling: what their targets stand for.
            tokenizer: of the run.
            max_length: pieces of a row, special ones included; of longer pairs the longer text is
                cut.
        """
        self._examples = examples
        self._labelling = labelling
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._firsts = encode_ragged(tokenizer, (example.text for example in examples))
        self._seconds = encode_ragged(tokenizer, (example.pair or "" for example in examples))
        special = np.asarray([2 if example.pair is None else 3 for example in examples], np.int64)
        lengths = np.diff(self._firsts.offsets) + np.diff(self._seconds.offsets) + special
        self._lengths = np.minimum(lengths, max_length).astype(np.int32)
        self.cut = int((lengths > max_length).sum())  # how many were longer than `max_length`

    @property
    def lengths(self) -> np.ndarray:
        """Pieces of each row: int32 [rows]."""
        return self._lengths

    @property
    def examples(self) -> int:
        """How many examples there are, a row each."""
        return len(self._examples)

    def row(self, index: int) -> Encoded:
        """Returns one row, its target under "label" where it is known.

        The target is an int for one label, float32 [labels] of 0 and 1 for several, a float for a
        regression.
        """
        made = assemble(
            self._firsts[index].tolist(),
            None if self._examples[index].pair is None else self._seconds[index].tolist(),
            self._tokenizer.special,
            max_length=self._max_length,
        )
        return Encoded((made.ids,), (made.second,), self._targets(index))

    def _targets(self, index: int) -> Mapping[str, np.ndarray | int | float]:
        target = self._examples[index].target
        if target is None:
            return {}
        if isinstance(target, frozenset):
            vector = np.zeros(len(self._labelling.names), np.float32)
            vector[sorted(target)] = 1
            return {"label": vector}
        return {"label": target}

    def collect(self) -> SequenceCollector:
        """Returns what gathers this split's predictions."""
        return SequenceCollector(self._examples, self._labelling)


class SequenceCollector:
    """Takes logits float32 [labels] of each example and makes its record."""

    def __init__(self, examples: Sequence[Example], labelling: Labelling) -> None:
        """Waits for a row of each example.

        Args:
            examples: of the split.
            labelling: what the logits stand for.
        """
        self._examples = examples
        self._labelling = labelling
        self._logits = np.zeros((len(examples), len(labelling.names)), np.float32)
        self._seen = np.zeros(len(examples), bool)

    def add(self, row: int, logits: np.ndarray) -> None:
        """Takes one row's logits.

        Args:
            row: its number in the split.
            logits: float32 [labels]; [1] for a regression.

        Raises:
            ValueError: another shape, or a row that has been taken already.
            RunStopped: they are not finite.
        """
        allowed = (len(self._labelling.names),)
        if logits.shape != allowed:
            raise ValueError(f"logits of row {row}: found {logits.shape}, allowed: {allowed}")
        if self._seen[row]:
            raise ValueError(f"logits of row {row}: found twice, allowed: once")
        if not np.isfinite(logits).all():
            raise RunStopped(
                f"logits of example {self._examples[row].id}: found {logits.tolist()}, allowed: "
                f"finite numbers; the model has diverged"
            )
        self._seen[row] = True
        self._logits[row] = logits

    def records(self) -> list[Record]:
        """Returns a record for every example, in the order of the file.

        Raises:
            ValueError: an example's logits are missing.
        """
        # A tenth of a second, which reading a configuration need not take.
        from scipy import special

        if not self._seen.all():
            missing = np.flatnonzero(~self._seen)
            raise ValueError(
                f"logits: found none for {len(missing)} of {len(self._seen)} rows, the first of "
                f"them {missing[0]}, allowed: logits for every row"
            )
        logits = self._logits.astype(np.float64)
        if self._labelling.problem == "regression":
            found = [{"prediction": value} for value in logits[:, 0].tolist()]
        elif self._labelling.problem == "multi_label":
            found = [self._several(row) for row in special.expit(logits).tolist()]
        else:
            found = [self._one(row) for row in special.softmax(logits, axis=-1).tolist()]
        return [
            self._base(example) | prediction
            for example, prediction in zip(self._examples, found, strict=True)
        ]

    def _one(self, probabilities: list[float]) -> Record:
        """The likeliest label; of equals the first."""
        names = self._labelling.names
        best = max(range(len(names)), key=probabilities.__getitem__)
        named = dict(zip(names, probabilities, strict=True))
        return {"prediction": names[best], "probabilities": named}

    def _several(self, probabilities: list[float]) -> Record:
        named = dict(zip(self._labelling.names, probabilities, strict=True))
        threshold = self._labelling.threshold
        chosen = [name for name, probability in named.items() if probability >= threshold]
        return {"prediction": chosen, "probabilities": named}

    def _base(self, example: Example) -> Record:
        pair = {} if example.pair is None else {"pair": example.pair}
        label = spelled(example.target, self._labelling)
        return {"id": example.id, "text": example.text, **pair, "label": label}


def spelled(target: Target, labelling: Labelling) -> str | list[str] | float | None:
    """Returns a target as records have it: a name, names in their order, a number or None."""
    if target is None:
        return None
    if isinstance(target, frozenset):
        return [labelling.names[number] for number in sorted(target)]
    if labelling.problem == "regression":
        return float(target)
    return labelling.names[int(target)]


def notes_of(name: str, split: SequenceSplit, examples: Sequence[Example], limit: int) -> list[str]:
    """Returns what an owner of the data should know of one split, a line each.

    Args:
        name: of the split.
        split: made of `examples`.
        examples: in the order of the file.
        limit: pieces of a row at most.
    """
    notes = []
    if split.cut:
        notes.append(
            f"{name}: {split.cut:,} of {len(examples):,} texts are longer than {limit} pieces: cut"
        )
    empty = [
        example.line
        for example in examples
        if not example.text.strip() or (example.pair is not None and not example.pair.strip())
    ]
    if empty:
        shown = ", ".join(map(str, empty[:NAMED_LINES])) + (", …" if empty[NAMED_LINES:] else "")
        notes.append(f"{name}: {len(empty):,} of {len(examples):,} texts are empty (line {shown})")
    return notes


@dataclasses.dataclass(frozen=True)
class SequenceFamily:
    """A `Family` whose splits are `SequenceSplit`s."""

    labelling: Labelling
    best_metric: str
    class_weights: tuple[float, ...] | None
    splits: Mapping[str, Split]
    notes: tuple[str, ...]
    figures: Callable[[Sequence[Record]], dict[str, float]]  # of labelled records, one or more
    official: Callable[[str, Sequence[Record], Path], Sequence[Path]]

    @property
    def heads(self) -> HeadsSection:
        """The heads that its model needs, with the names of the labels."""
        return self.labelling.heads

    def score(self, records: Sequence[Record]) -> dict[str, float]:
        """Returns the figures of those records that have a label; {} if none has."""
        labelled = [record for record in records if record["label"] is not None]
        return self.figures(labelled) if labelled else {}

    def write_official(
        self, split: str, records: Sequence[Record], directory: Path
    ) -> Sequence[Path]:
        """Writes predictions as the task's own benchmark takes them, and returns the files."""
        return self.official(split, records, directory)
