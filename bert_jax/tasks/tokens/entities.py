"""Entities in labelled sentences, and how well predicted ones agree with them.

The spans are read as by conlleval, the scorer of the CoNLL-2002 and 2003 shared tasks, which has a
reading for every sequence of labels, also for those that no scheme allows. `seqeval`, which follows
it too, has had no release since 2020; `nervaluate` knows no BIOES. The figures are scikit-learn's.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from bert_jax.tasks.family import Record
from bert_jax.tasks.scores import accuracy, macro_f1
from bert_jax.tasks.tokens.schemes import OUTSIDE, known_label


class Entity(NamedTuple):
    """A span of tokens: ``Entity("PER", 3, 5)`` is tokens 3 and 4."""

    type: str
    start: int
    end: int


def find_entities(labels: Sequence[str]) -> list[Entity]:
    """Returns the spans of a sentence: ``["I-PER", "I-PER", "O", "B-LOC"]`` → PER 0–2, LOC 3–4.

    Labels are O, or B, I, E, S with or without a type. I and E go on with a span of their type that
    has not ended; where there is none they begin one. B and S always begin one. E and S end theirs,
    and so does whatever does not go on with it.

    Source: `startOfChunk` and `endOfChunk` of conlleval (Tjong Kim Sang and Buchholz, 2000) for B,
    I, E and O. It has no S, and no end between E and B or S, as BIOES needs them; both are as its
    later versions in Python and seqeval have them. Raises ValueError: a label of another form.
    """
    spans: list[Entity] = []
    kind, start = None, 0  # of the span that is open; None: there is none
    for position, label in enumerate([*labels, OUTSIDE]):
        parsed = known_label(label)
        goes_on = parsed.prefix in ("I", "E") and parsed.type == kind
        if kind is not None and not goes_on:
            spans.append(Entity(kind, start, position))
            kind = None
        if parsed.prefix != OUTSIDE and kind is None:
            kind, start = parsed.type, position
        if kind is not None and parsed.prefix in ("E", "S"):
            spans.append(Entity(kind, start, position + 1))
            kind = None
    return spans


def entity_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Returns the figures of conlleval, as fractions of 1, of the labels of each sentence.

    A predicted entity is right if there is one of the same type, start and end. All types count
    together (micro). A figure that would divide by nothing is 0. Returns precision, recall, f1 of
    entities; token_accuracy, the share of labels that agree.
    """
    pairs = _paired_types(gold, predicted)
    precision = recall = f1 = 0.0
    if pairs.types:
        precision, recall, f1, _ = _figures(pairs, average="micro")
    return {
        "precision": float(precision),
        "recall": float(recall),
        "f1": float(f1),
        "token_accuracy": accuracy(*_flat(gold, predicted)),
    }


def entity_report(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Returns the figures of each type of entity.

    ``{"PER": {"precision": 0.9, "recall": 0.8, "f1": 0.847, "support": 10}}``

    The records are labelled, of a task with a scheme of spans. Types are sorted; support is the
    number of entities in the labels.
    """
    pairs = _paired_types([r["label"] for r in records], [r["prediction"] for r in records])
    if not pairs.types:
        return {}
    columns = ("precision", "recall", "f1", "support")
    return {
        name: dict(zip(columns, map(float, row), strict=True))
        for name, *row in zip(pairs.types, *_figures(pairs, average=None), strict=True)
    }


def label_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Returns the figures of the labels of each sentence, where they spell no spans.

    Accuracy over tokens; macro_f1, the mean over the labels that occur on either side.
    """
    flat = _flat(gold, predicted)
    return {"accuracy": accuracy(*flat), "macro_f1": macro_f1(*flat)}


class _Pairs(NamedTuple):
    """For every place that holds an entity on either side, its type there; −1: none."""

    gold: list[int]
    predicted: list[int]
    types: list[str]


def _paired_types(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> _Pairs:
    # Spans of one side never overlap, so a place has one type at most, and agreement of entities
    # is agreement of types over places: what scikit-learn counts.
    places: dict[tuple[int, int, int], list[str | None]] = {}
    for number, sides in enumerate(zip(gold, predicted, strict=True)):
        if len(sides[0]) != len(sides[1]):
            raise ValueError(f"sentence {number}: {len(sides[0])} and {len(sides[1])} labels")
        for side, labels in enumerate(sides):
            for entity in find_entities(labels):
                place = places.setdefault((number, entity.start, entity.end), [None, None])
                place[side] = entity.type
    types = sorted({kind for place in places.values() for kind in place if kind is not None})
    ids: dict[str | None, int] = {None: -1, **{kind: index for index, kind in enumerate(types)}}
    return _Pairs(
        [ids[first] for first, _ in places.values()],
        [ids[second] for _, second in places.values()],
        types,
    )


def _figures(pairs: _Pairs, *, average: Literal["micro"] | None) -> Any:
    """Returns precision, recall, F1 and support: of all types together, or arrays by type."""
    from sklearn.metrics import precision_recall_fscore_support

    # scikit-learn's own types know only the default of `zero_division`, "warn".
    function: Any = precision_recall_fscore_support
    types = range(len(pairs.types))
    return function(pairs.gold, pairs.predicted, labels=types, average=average, zero_division=0)


def _flat(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> tuple[list[str], list[str]]:
    pairs = [
        pair for sides in zip(gold, predicted, strict=True) for pair in zip(*sides, strict=True)
    ]
    return [first for first, _ in pairs], [second for _, second in pairs]
