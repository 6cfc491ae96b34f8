"""Labelled words: figures by type, and sentences with the gold and the predicted spans."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from bert_jax.report.finetuning.classification import class_table, confusion
from bert_jax.report.html import Element, Node, element, showing
from bert_jax.report.page import SHOWN, examples, quiet, table

Record = Mapping[str, Any]

COLOURS: Final = 6
WORDS: Final = 150  # of a sentence
PREFIXED: Final = re.compile(r"([BIESLU])-(.+)")
OUTSIDE: Final = "O"


class Span(NamedTuple):
    """Words that belong together."""

    start: int
    end: int  # exclusive
    type: str


def labelled_words(
    records: Sequence[Record],
    *,
    labels: Sequence[str],
    entities: Mapping[str, Mapping[str, float]],
) -> list[Node]:
    """Returns figures by type and by label, and the sentences with most spans wrong.

    Args:
        records: labelled ones.
        labels: the model's, in its order.
        entities: figures of each type, as the task's scorer computed them; empty where labels are
            no entities.
    """
    gold = [str(label) for record in records for label in record["label"]]
    predicted = [str(label) for record in records for label in record["prediction"]]
    made: list[Node] = []
    if entities:
        columns = list(next(iter(entities.values())))
        rows = [
            (name, *(int(own[key]) if key == "support" else own[key] for key in columns))
            for name, own in entities.items()
        ]
        made.append(table(("type", *columns), rows, caption="Figures by type of entity"))
    made.append(class_table(gold, predicted, labels=labels, noun="label"))
    made += confusion(gold, predicted, labels=labels, noun="label")
    types = sorted({span.type for record in records for span in spans(record["label"])})
    styles = {name: f"--type:var(--type-{at % COLOURS})" for at, name in enumerate(types)}
    wrong = [record for record in records if _differences(record)]
    wrong.sort(key=_differences, reverse=True)
    made += [
        element("h3", "Sentences with most spans wrong"),
        quiet(
            showing(min(SHOWN, len(wrong)), len(wrong), "sentence", " with errors")
            + " A dashed frame marks what the other line does not have."
        ),
        examples(_sentence(record, styles) for record in wrong[:SHOWN]),
    ]
    return made


def spans(tags: Sequence[str]) -> list[Span]:
    """Returns the spans of a sentence, for showing them: ``B-LOC I-LOC O`` → (0, 2, "LOC").

    Reads IOB1, IOB2, BIOES and BILOU as the 2000 shared task's `conlleval` does: a span begins at
    B, S or U, after E, L or a span of another type, and wherever nothing stood before it. Labels
    without such prefixes (parts of speech) are spans of one word each; O is none.
    """
    marked = [tag for tag in tags if tag != OUTSIDE]
    if not all(PREFIXED.fullmatch(tag) for tag in marked):
        return [Span(at, at + 1, tag) for at, tag in enumerate(tags) if tag != OUTSIDE]
    found: list[Span] = []
    ended = True
    for at, tag in enumerate(tags):
        match = PREFIXED.fullmatch(tag)
        if match is None:
            ended = True
            continue
        prefix, name = match.groups()
        if ended or prefix in "BSU" or found[-1].type != name:
            found.append(Span(at, at + 1, name))
        else:
            found[-1] = found[-1]._replace(end=at + 1)
        ended = prefix in "ESLU"
    return found


def _differences(record: Record) -> int:
    return len(set(spans(record["label"])) ^ set(spans(record["prediction"])))


def _sentence(record: Record, styles: Mapping[str, str]) -> Element:
    tokens = [str(token) for token in record["tokens"]]
    gold, predicted = spans(record["label"]), spans(record["prediction"])
    rest = len(tokens) - WORDS
    return element(
        "li",
        _line("gold", tokens, gold, set(predicted), styles, said="missed"),
        _line("predicted", tokens, predicted, set(gold), styles, said="wrong"),
        quiet(f"… and {rest:,} more words") if rest > 0 else None,
        element("div", f"id {record['id']}", class_="quiet"),
    )


def _line(
    name: str,
    tokens: Sequence[str],
    marked: Sequence[Span],
    others: set[Span],
    styles: Mapping[str, str],
    *,
    said: str,
) -> Element:
    """One reading of a sentence; spans that `others` lacks are framed and said to be `said`."""
    words: list[Node] = []
    at = 0
    for span in [*marked, Span(len(tokens), len(tokens), "")]:
        if span.start >= WORDS or span.type == "":
            words.append(" ".join(tokens[at:WORDS]))
            break
        words.append(" ".join(tokens[at : span.start]) + " ")
        wrong = span not in others
        words.append(
            element(
                "span",
                " ".join(tokens[span.start : span.end]),
                element("b", f"{span.type} ✗" if wrong else span.type),
                class_="span wrong" if wrong else "span",
                style=styles.get(span.type, "--type:var(--type-5)"),
                title=said if wrong else None,
            )
        )
        words.append(" ")
        at = span.end
    return element("div", element("span", name), element("span", *words), class_="line")
