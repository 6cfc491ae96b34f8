"""Questions with the gold and the predicted answer marked where they stand."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from bert_jax.report.charts import bar, heat_map
from bert_jax.report.html import Element, Node, element, number, showing
from bert_jax.report.page import SHOWN, examples, facts, quiet, table

Record = Mapping[str, Any]

RIGHT: Final = 5  # questions answered rightly
BEST: Final = 5  # answers of one question
AROUND: Final = 280  # characters kept on either side of a mark
NO_ANSWER: Final = "no answer"


def answers(records: Sequence[Record], *, f1: Sequence[float]) -> list[Node]:
    """Returns the worst questions with their contexts, and a few right ones.

    Args:
        records: labelled ones.
        f1: of each record, 0 to 1, as the task's scorer computed it.

    Raises:
        ValueError: not one F1 for each record.
    """
    if len(f1) != len(records):
        raise ValueError(f"found {len(f1)} F1 values for {len(records)} questions")
    order = np.argsort(np.asarray(f1), kind="stable").tolist()
    wrong = [at for at in order if f1[at] < 1]
    right = [at for at in order if f1[at] == 1]
    return [
        *_answerable(records),
        element("h3", "Worst answers"),
        quiet(
            showing(min(SHOWN, len(wrong)), len(wrong), "question", " with F1 below 1")
            + " The lowest come first."
        ),
        _legend(),
        examples(_question(records[at], f1[at]) for at in wrong[:SHOWN]),
        element("h3", "Right answers"),
        quiet(showing(min(RIGHT, len(right)), len(right), "question", " with F1 1")),
        examples(_question(records[at], f1[at]) for at in right[:RIGHT]),
    ]


def _answerable(records: Sequence[Record]) -> list[Node]:
    """Whether the model knows which questions have no answer, where there are such."""
    counts = np.zeros((2, 2), np.int64)
    for record in records:
        counts[int(not record["answers"]), int(not record["prediction"])] += 1
    if not counts[1].any():
        return []
    names = ("an answer", NO_ANSWER)
    caption = "Rows: what the question has. Columns: what the model gave."
    return [
        element("h3", "Questions without an answer"),
        heat_map(counts, rows=names, columns=names, corner="gold \\ predicted", caption=caption),
    ]


def _legend() -> Element:
    return element(
        "p",
        "In a context, ",
        element("mark", "underlined", class_="gold"),
        " is a gold answer, ",
        element("mark", "shaded", class_="predicted"),
        " is the model's, and ",
        element("mark", "both", class_="gold predicted"),
        " where they agree.",
    )


def _question(record: Record, f1: float) -> Element:
    gold = list(dict.fromkeys(str(answer["text"]) for answer in record["answers"]))
    pairs: list[tuple[str, Node]] = [
        ("gold", " / ".join(gold) or NO_ANSWER),
        ("predicted", str(record["prediction"]) or NO_ANSWER),
        ("F1", number(float(f1))),
    ]
    if record.get("null_score_difference") is not None:
        pairs.append(("null score difference", number(float(record["null_score_difference"]))))
    pairs.append(("id", str(record["id"])))
    return element(
        "li",
        element("p", element("strong", str(record["question"]))),
        element("p", *marked(record)),
        facts(pairs),
        _best(record["nbest"]),
    )


def marked(record: Record) -> list[Node]:
    """Returns a context with its answers marked, long stretches without any cut short.

    Args:
        record: of a question; places are characters of its context.
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
    made: list[Node] = []
    for start, end in itertools.pairwise(edges):
        text = context[start:end]
        classes = " ".join(name for name, where in kinds.items() if start < end and where[start])
        if classes:
            made.append(element("mark", text, class_=classes))
        else:
            made.append(_shorten(text, first=start == 0, last=end == len(context)))
    return made


def _shorten(text: str, *, first: bool, last: bool) -> str:
    """A stretch without marks: what lies next to its neighbours is kept."""
    head, tail = (0 if first and not last else AROUND), (0 if last and not first else AROUND)
    if first and last:
        head, tail = 2 * AROUND, 0
    if len(text) <= head + tail + 40:
        return text
    return text[:head] + " … " + (text[-tail:] if tail else "")


def _best(nbest: Sequence[Mapping[str, Any]]) -> Element | None:
    if not nbest:
        return None
    rows = []
    for answer in nbest[:BEST]:
        share = float(answer["probability"])
        rows.append(
            (
                str(answer["text"]) or NO_ANSWER,
                element("span", bar(share), f"{share:.3f}", class_="odds"),
                float(answer["start_logit"]),
                float(answer["end_logit"]),
            )
        )
    return table(
        ("answer", "probability", "start logit", "end logit"),
        rows,
        caption=f"The {len(rows)} best of {len(nbest)} answers",
    )
