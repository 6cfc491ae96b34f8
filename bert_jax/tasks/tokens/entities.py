"""Entities in labelled sentences: tagging schemes, spans and scores.

Spans follow the rules of conlleval, the scorer of the CoNLL-2002 and 2003 shared tasks, which
accepts every sequence of labels. We use no library: `seqeval` has the same rules, but its last
release was in 2020, and `nervaluate` lacks BIOES.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from bert_jax.tasks.family import Record
from bert_jax.tasks.scores import OUTSIDE, label_figure

Scheme: TypeAlias = Literal["IOB1", "IOB2", "BIOES", "none"]

# Prefixes of BILOU and BMES, as prefixes of BIOES.
_CANONICAL: Final = {"B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S", "M": "I"}
PREFIXES: Final[dict[Scheme, str]] = {"IOB1": "BI", "IOB2": "BI", "BIOES": "BIES", "none": ""}


class SpanLabel(NamedTuple):
    """``"B-per-name"`` → prefix B, type per-name; ``"O"`` and ``"B"`` have no type.

    The prefix is B, I, E, S or O, however the label spells it.
    """

    prefix: str
    type: str


def parse_label(label: str) -> SpanLabel | None:
    """Parses a label. Returns None if it belongs to no scheme, such as ``"NN"``.

    The type begins after the first hyphen, as in conlleval. ``B_PER``, ``b-PER`` and, in BILOU and
    BMES, ``L-PER``, ``U-PER`` and ``M-PER`` are other spellings.
    """
    if label.upper() == OUTSIDE:
        return SpanLabel(OUTSIDE, "")
    if label in _CANONICAL:
        return SpanLabel(_CANONICAL[label], "")
    prefix, kind = _CANONICAL.get(label[:1].upper()), label[2:]
    if prefix is not None and label[1:2] in ("-", "_") and kind:
        return SpanLabel(prefix, kind)
    return None


def _known(label: str) -> SpanLabel:
    parsed = parse_label(label)
    if parsed is None:
        raise ValueError(f"found the label {label!r}, allowed: {', '.join(labels_of('BIOES'))}")
    return parsed


def fits(label: str, scheme: Scheme) -> bool:
    """Returns whether a label belongs to a scheme."""
    if scheme == "none":
        return True
    parsed = parse_label(label)
    return parsed is not None and parsed.prefix in OUTSIDE + PREFIXES[scheme]


def scheme_of_names(names: Iterable[str]) -> Scheme:
    """Returns the scheme of a set of labels. Returns IOB2 for IOB1, which has the same labels.

    ``["B-PER", "I-PER", "O"]`` → IOB2; ``["O", "S-PER"]`` → BIOES; ``["NN"]``, ``["O"]`` → none
    """
    parsed = [parse_label(name) for name in names]
    prefixes = {label.prefix for label in parsed if label is not None} - {OUTSIDE}
    if None in parsed or not prefixes:
        return "none"
    return "BIOES" if prefixes & {"E", "S"} else "IOB2"


def detect_scheme(sentences: Sequence[Sequence[str]]) -> Scheme:
    """Detects the scheme of labelled sentences.

    If `parse_label` rejects a label, or if all labels are O, the scheme is "none". If E or S
    occurs, it is BIOES. Otherwise it is IOB1 or IOB2, whichever has fewer `violations`; IOB2 in a
    tie.
    """
    named = scheme_of_names({label for labels in sentences for label in labels})
    if named != "IOB2":
        return named
    first = sum(len(violations(labels, "IOB1")) for labels in sentences)
    second = sum(len(violations(labels, "IOB2")) for labels in sentences)
    return "IOB1" if first < second else "IOB2"


def violations(labels: Sequence[str], scheme: Scheme) -> list[int]:
    """Returns the indices of labels that contradict a scheme.

    In IOB2, every span begins with B. In IOB1, a span begins with B if it directly follows a span
    of the same type, otherwise with I. In BIOES, a span of one token is S, and a longer span is B,
    any number of I, then E. All `labels` must belong to one sentence and to the scheme.
    """
    if scheme == "none":
        return []
    parsed = [SpanLabel(OUTSIDE, ""), *map(_known, labels), SpanLabel(OUTSIDE, "")]
    triples = zip(parsed, parsed[1:], parsed[2:], strict=False)
    return [at for at, triple in enumerate(triples) if not _allowed(*triple, scheme)]


def _allowed(before: SpanLabel, here: SpanLabel, after: SpanLabel, scheme: Scheme) -> bool:
    follows = before.prefix != OUTSIDE and before.type == here.type
    if scheme != "BIOES":
        return here.prefix != {"IOB1": "B", "IOB2": "I"}[scheme] or follows
    continued = after.prefix in ("I", "E") and after.type == here.type
    if here.prefix in ("I", "E") and not (follows and before.prefix in ("B", "I")):
        return False
    return here.prefix not in ("B", "I") or continued


def complete_labels(found: Iterable[str], scheme: Scheme) -> tuple[str, ...]:
    """Adds the missing labels of each entity type, and sorts the labels.

    ``{"B-PER"}`` in IOB2 → ``("B-PER", "I-PER", "O")``. The dev set may have labels that the
    training set lacks. They are spelled like the labels found: ``{"b_per"}`` → ``b_per``,
    ``i_per`` and ``o``.
    """
    names = set(found)
    if scheme == "none":
        return tuple(sorted(names))
    inside = [(name, label) for name in names if (label := _known(name)).prefix != OUTSIDE]
    letters = {name[0].upper() for name, _ in inside}
    spelled = {prefix: prefix for prefix in PREFIXES[scheme]}
    if letters & {"L", "U"}:
        spelled |= {"E": "L", "S": "U"}
    if "M" in letters:
        spelled["I"] = "M"
    lower = bool(inside) and all(name[0].islower() for name, _ in inside)
    hyphen = next((name[1] for name, label in inside if label.type), "-")
    for kind in {label.type for _, label in inside}:
        for prefix in spelled.values():
            first = prefix.lower() if lower else prefix
            names.add(f"{first}{hyphen}{kind}" if kind else first)
    if not any(_known(name).prefix == OUTSIDE for name in names):
        names.add(OUTSIDE.lower() if lower else OUTSIDE)
    return tuple(sorted(names))


def labels_of(scheme: Scheme) -> list[str]:
    """Describes the labels of a scheme for a message: ``["O", "B-TYPE", "I-TYPE"]``."""
    return [OUTSIDE, *(f"{prefix}-TYPE" for prefix in PREFIXES[scheme])]


class Entity(NamedTuple):
    """A span of tokens: ``Entity("PER", 3, 5)`` is tokens 3 and 4."""

    type: str
    start: int
    end: int


def find_entities(labels: Sequence[str]) -> list[Entity]:
    """Returns the spans of a sentence: ``["I-PER", "I-PER", "O", "B-LOC"]`` → PER 0–2, LOC 3–4.

    B and S begin a span. I and E continue an open span of their type, or begin one if there is
    none. A span ends after E or S, or before a label that does not continue it.

    Source: `startOfChunk` and `endOfChunk` of conlleval (Tjong Kim Sang and Buchholz, 2000). S, and
    E before B or S, follow the later Python version of conlleval and seqeval. Raises ValueError for
    a label of no scheme.
    """
    spans: list[Entity] = []
    kind, start = None, 0  # open span; `kind` is None if there is none
    for position, label in enumerate([*labels, OUTSIDE]):
        parsed = _known(label)
        continues = parsed.prefix in ("I", "E") and parsed.type == kind
        if kind is not None and not continues:
            spans.append(Entity(kind, start, position))
            kind = None
        if parsed.prefix != OUTSIDE and kind is None:
            kind, start = parsed.type, position
        if kind is not None and parsed.prefix in ("E", "S"):
            spans.append(Entity(kind, start, position + 1))
            kind = None
    return spans


def entity_records(
    labels: Sequence[str],
    chances: Sequence[float],
    text: str,
    offsets: Sequence[tuple[int, int]],
) -> list[Record]:
    """Returns the entities of a sentence for its record.

    ``{"type": "PER", "text": "Dr Ito", "start": 0, "end": 6, "tokens": [0, 2], "probability":
    0.9}``. `start` and `end` are characters of the text, `tokens` is the range of tokens. The
    probability is the mean of the tokens' `chances`, as in Hugging Face's pipeline.
    """
    records: list[Record] = []
    for kind, first, end in find_entities(labels):
        at, to = offsets[first][0], offsets[end - 1][1]
        mean = sum(chances[first:end]) / (end - first)
        place = {"start": at, "end": to, "tokens": [first, end]}
        records.append({"type": kind, "text": text[at:to], **place, "probability": mean})
    return records


def entity_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Returns the scores of conlleval, from 0 to 1.

    The keys are precision, recall and f1 of entities (micro averages over types), and
    token_accuracy. A predicted entity is correct if its type, start and end are. 0 / 0 is 0.
    """
    accuracy = label_scores(gold, predicted, ("accuracy",))["accuracy"]
    return {**_figures(_places(gold), _places(predicted)), "token_accuracy": accuracy}


def entity_report(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Returns scores by entity type, in sorted order.

    ``{"PER": {"precision": 0.9, "recall": 0.8, "f1": 0.847, "support": 10}}``

    The support is the number of gold entities. All records must have labels of a span scheme.
    """
    gold, predicted = (_places([r[key] for r in records]) for key in ("label", "prediction"))
    report = {}
    for kind in sorted({entity.type for _, entity in gold | predicted}):
        sides = ({each for each in side if each[1].type == kind} for side in (gold, predicted))
        support = sum(entity.type == kind for _, entity in gold)
        report[kind] = {**_figures(*sides), "support": float(support)}
    return report


def _places(sentences: Sequence[Sequence[str]]) -> set[tuple[int, Entity]]:
    """Returns (sentence index, entity) for all entities."""
    return {
        (number, entity)
        for number, labels in enumerate(sentences)
        for entity in find_entities(labels)
    }


def _figures(gold: set[tuple[int, Entity]], predicted: set[tuple[int, Entity]]) -> dict[str, float]:
    right = len(gold & predicted)
    return {
        "precision": right / max(len(predicted), 1),
        "recall": right / max(len(gold), 1),
        "f1": 2 * right / max(len(gold) + len(predicted), 1),
    }


def label_scores(
    gold: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    keys: Sequence[str] = ("accuracy", "macro_f1"),
) -> dict[str, float]:
    """Returns scores over all tokens. For `keys`, see `label_figure`."""
    pairs = [
        pair for sides in zip(gold, predicted, strict=True) for pair in zip(*sides, strict=True)
    ]
    first, second = zip(*pairs, strict=True)
    return {key: label_figure(key, first, second) for key in keys}
