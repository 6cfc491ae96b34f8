"""Question answering: contexts with the gold and the predicted answer highlighted."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

import numpy as np

from bert_jax.report.finetuning.classification import Matrix
from bert_jax.report.finetuning.selection import Record, Selection, select

CORRECT: Final = 5  # correctly answered questions to show
CONTEXT: Final = 280  # characters kept on either side of a highlight
NO_ANSWER: Final = "no answer"


class Segment(NamedTuple):
    """Part of a context."""

    text: str
    highlight: str  # "", "gold", "predicted" or "gold predicted"


@dataclass(frozen=True)
class Answers:
    """The worst questions with their contexts, and a few with F1 1."""

    template: ClassVar = "finetuning/answers.html"
    answerable: Matrix | None  # gold against predicted; None if every question has an answer
    errors: Selection
    correct: Selection


def answers(records: Sequence[Record], *, f1: Sequence[float]) -> Answers:
    """Returns the section of question answering.

    `f1` is that of each record, all labelled: 0 to 1, as the task's scorer computed it. Raises
    ValueError unless there is one F1 for each record.
    """
    if len(f1) != len(records):
        raise ValueError(f"found {len(f1)} F1 values for {len(records)} questions")
    ordered = sorted(
        (
            {**record, "f1": float(score), "segments": segments(record)}
            for record, score in zip(records, f1, strict=True)
        ),
        key=lambda record: record["f1"],
    )
    return Answers(
        answerable=_answerable(records),
        errors=select(record for record in ordered if record["f1"] < 1),
        correct=select((record for record in ordered if record["f1"] == 1), limit=CORRECT),
    )


def _answerable(records: Sequence[Record]) -> Matrix | None:
    counts = np.zeros((2, 2), np.int64)
    for record in records:
        counts[int(not record["answers"]), int(not record["prediction"])] += 1
    names = ("an answer", NO_ANSWER)
    return Matrix(names, names, counts.tolist()) if counts[1].any() else None


def segments(record: Record) -> list[Segment]:
    """Returns a context with its answers highlighted, long passages without any cut short.

    Positions in a record are characters of its context.
    """
    context = str(record["context"])
    kinds = {"gold": np.zeros(len(context), bool), "predicted": np.zeros(len(context), bool)}
    for answer in record["answers"]:
        start = int(answer["start"])
        kinds["gold"][start : start + len(answer["text"])] = True
    if record["start"] is not None and record["prediction"]:
        start = int(record["start"])
        kinds["predicted"][start : start + len(record["prediction"])] = True
    codes = kinds["gold"] + 2 * kinds["predicted"].astype(np.int8)
    edges = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(context)]
    found = []
    for start, end in itertools.pairwise(edges):
        text = context[start:end]
        highlight = " ".join(name for name, where in kinds.items() if start < end and where[start])
        if not highlight:
            text = _shorten(text, first=start == 0, last=end == len(context))
        found.append(Segment(text, highlight))
    return found


def _shorten(text: str, *, first: bool, last: bool) -> str:
    """A passage without highlights: the parts next to highlights are kept."""
    head, tail = (0 if first and not last else CONTEXT), (0 if last and not first else CONTEXT)
    if first and last:
        head, tail = 2 * CONTEXT, 0
    if len(text) <= head + tail + 40:
        return text
    return text[:head] + " … " + (text[-tail:] if tail else "")
