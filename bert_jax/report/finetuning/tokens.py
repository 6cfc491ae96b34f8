"""Token classification: metrics by entity type, and sentences with gold and predicted spans."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from bert_jax.report.finetuning.classification import confusion, label_metrics
from bert_jax.report.rendering import Record, View, select

COLOURS: Final = 6
WORDS: Final = 150  # maximum number of words to show of a sentence
PREFIXED: Final = re.compile(r"([BIESLUMbieslum])[-_](.+)")
OUTSIDE: Final = ("O", "o")


class EntitySpan(NamedTuple):
    """Consecutive words that form one entity."""

    start: int
    end: int  # exclusive
    type: str


class Segment(NamedTuple):
    """A span of a sentence, or words outside spans."""

    text: str
    type: str = ""  # "" for words outside spans
    differs: bool = False  # whether the span is only gold or only predicted


def labelled_words(
    records: Sequence[Record], *, labels: Sequence[str], entities: Mapping[str, Mapping[str, float]]
) -> View:
    """Returns metrics by entity type and by label, and the sentences with the most span errors.

    `labels` are in the model's order. `entities` are the metrics by entity type, empty if the
    labels are not entities.
    """
    gold = [str(label) for record in records for label in record["label"]]
    predicted = [str(label) for record in records for label in record["prediction"]]
    columns = list(next(iter(entities.values()))) if entities else []
    types = sorted({span.type for record in records for span in spans(record["label"])})
    errors = select((record for record in records if _errors(record)), largest=_errors)
    return {
        "template": "finetuning/tokens.html",
        "entity_columns": columns,
        "entities": [
            (name, *(int(own[key]) if key == "support" else own[key] for key in columns))
            for name, own in entities.items()
        ],
        "metrics": label_metrics(gold, predicted, labels=labels),
        "confusion": confusion(gold, predicted, labels=labels),
        "colours": {name: at % COLOURS for at, name in enumerate(types)},
        "errors": errors._replace(records=[_readings(record) for record in errors.records]),
    }


def spans(tags: Sequence[str]) -> list[EntitySpan]:
    """Returns the spans of a sentence, for display: ``B-LOC I-LOC O`` → (0, 2, "LOC").

    Supports IOB1, IOB2, BIOES, BILOU and BMES. A span begins at B, S or U, after E or L, after a
    span of another type, and after O. If a label has no such prefix, as in part-of-speech tagging,
    every word except O is a span.
    """
    inside = [tag for tag in tags if tag not in OUTSIDE]
    if not all(PREFIXED.fullmatch(tag) for tag in inside):
        return [EntitySpan(at, at + 1, tag) for at, tag in enumerate(tags) if tag not in OUTSIDE]
    found: list[EntitySpan] = []
    ended = True
    for at, tag in enumerate(tags):
        match = PREFIXED.fullmatch(tag)
        if match is None:
            ended = True
            continue
        prefix, name = match[1].upper(), match[2]
        if ended or prefix in "BSU" or found[-1].type != name:
            found.append(EntitySpan(at, at + 1, name))
        else:
            found[-1] = found[-1]._replace(end=at + 1)
        ended = prefix in "ESLU"
    return found


def _errors(record: Record) -> int:
    return len(set(spans(record["label"])) ^ set(spans(record["prediction"])))


def _readings(record: Record) -> Record:
    tokens = [str(token) for token in record["tokens"]]
    gold, predicted = spans(record["label"]), spans(record["prediction"])
    return {
        "id": record["id"],
        "gold": _segments(tokens, gold, other=set(predicted)),
        "predicted": _segments(tokens, predicted, other=set(gold)),
        "omitted": max(len(tokens) - WORDS, 0),
    }


def _segments(
    tokens: Sequence[str], marked: Sequence[EntitySpan], *, other: set[EntitySpan]
) -> list[Segment]:
    found = []
    at = 0
    for span in marked:
        if span.start >= WORDS:
            break
        found.append(Segment(" ".join(tokens[at : span.start])))
        text = " ".join(tokens[span.start : span.end])
        found.append(Segment(text, span.type, span not in other))
        at = span.end
    return [*found, Segment(" ".join(tokens[at:WORDS]))]
