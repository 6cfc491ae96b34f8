"""Question answering: contexts with highlighted gold and predicted answers."""

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from bert_jax.report.finetuning.classification import Matrix
from bert_jax.report.rendering import Record, View, select

CORRECT: Final = 5  # number of correctly answered questions to show
CONTEXT: Final = 280  # number of characters to show beside a highlight
NO_ANSWER: Final = "no answer"


class Segment(NamedTuple):
    """A stretch of a context with the same highlight."""

    text: str
    highlight: str  # "", "gold", "predicted" or "gold predicted"


def answers(records: Sequence[Record], *, f1: Sequence[float]) -> View:
    """Returns questions with wrong answers, worst first, and a few with correct answers.

    `f1` is the F1 of each record, 0 to 1. All records have labels.
    """
    scored = (
        {**record, "f1": float(score), "segments": segments(record)}
        for record, score in zip(records, f1, strict=True)
    )
    ordered = sorted(scored, key=lambda record: record["f1"])
    return {
        "template": "finetuning/answers.html",
        "answerable": _answerable(records),
        "errors": select(record for record in ordered if record["f1"] < 1),
        "correct": select((record for record in ordered if record["f1"] == 1), limit=CORRECT),
    }


def _answerable(records: Sequence[Record]) -> Matrix | None:
    """Returns the confusion matrix of "an answer" and "no answer", None if all have answers."""
    counts = np.zeros((2, 2), np.int64)
    for record in records:
        counts[int(not record["answers"]), int(not record["prediction"])] += 1
    names = ("an answer", NO_ANSWER)
    return Matrix(names, names, counts.tolist()) if counts[1].any() else None


def segments(record: Record) -> list[Segment]:
    """Splits a context into segments, and shortens long segments without a highlight.

    Starts of answers are character offsets in the context.
    """
    context = str(record["context"])
    spans = {"gold": [(int(answer["start"]), answer["text"]) for answer in record["answers"]]}
    if (start := record["start"]) is not None:
        spans["predicted"] = [(int(start), record["prediction"])]
    kinds = {name: np.zeros(len(context), bool) for name in spans}
    for name, found in spans.items():
        for start, text in found:
            kinds[name][start : start + len(text)] = True
    changes = [np.flatnonzero(np.diff(kind)) + 1 for kind in kinds.values()]
    edges = np.unique(np.concatenate([[0, len(context)], *changes])).astype(int).tolist()
    found = []
    for start, end in itertools.pairwise(edges):
        text = context[start:end]
        highlight = " ".join(name for name, where in kinds.items() if where[start])
        if not highlight:
            text = _shorten(text, first=start == 0, last=end == len(context))
        found.append(Segment(text, highlight))
    return found


def _shorten(text: str, *, first: bool, last: bool) -> str:
    """Shortens a segment without a highlight: keeps `CONTEXT` characters beside each neighbour."""
    head, tail = (0 if first and not last else CONTEXT), (0 if last and not first else CONTEXT)
    if first and last:
        head, tail = 2 * CONTEXT, 0
    if len(text) <= head + tail + 40:
        return text
    return text[:head] + " … " + (text[-tail:] if tail else "")
