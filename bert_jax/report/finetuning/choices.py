"""Multiple choice: the probability of each choice."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from bert_jax.report.finetuning.classification import Matrix
from bert_jax.report.finetuning.selection import Record, Selection, confidence, select

CORRECT: Final = 5  # correct examples to show


@dataclass(frozen=True)
class Choices:
    """Positions of right and chosen answers, the most confident errors, a few correct examples."""

    template: ClassVar = "finetuning/choices.html"
    positions: Matrix
    errors: Selection
    correct: Selection


def choices(records: Sequence[Record]) -> Choices:
    """Returns the section of a multiple-choice task, of labelled records."""
    size = max(len(record["choices"]) for record in records)
    counts = np.zeros((size, size), np.int64)
    for record in records:
        counts[record["label"], record["prediction"]] += 1
    names = [str(position + 1) for position in range(size)]
    wrong = (record for record in records if record["label"] != record["prediction"])
    right = (record for record in records if record["label"] == record["prediction"])
    return Choices(
        positions=Matrix(names, names, counts.tolist()),
        errors=select(wrong, largest=confidence),
        correct=select(right, limit=CORRECT),
    )
