"""How labels of tokens spell spans: IOB1, IOB2, BIOES, or not at all."""

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

Scheme: TypeAlias = Literal["IOB1", "IOB2", "BIOES", "none"]

PREFIXES: Final[dict[Scheme, str]] = {"IOB1": "BI", "IOB2": "BI", "BIOES": "BIES", "none": ""}
OUTSIDE: Final = "O"


class SpanLabel(NamedTuple):
    """``"B-per-name"`` → prefix B, type per-name; ``"O"`` and ``"B"`` have no type."""

    prefix: str
    type: str


def parse_label(label: str) -> SpanLabel | None:
    """Returns the parts of a label; None of one such as ``"NN"``, which is of no scheme.

    The type begins after the first hyphen, as in conlleval.
    """
    prefix, hyphen, kind = label.partition("-")
    if label == OUTSIDE:
        return SpanLabel(OUTSIDE, "")
    if prefix in ("B", "I", "E", "S") and bool(hyphen) == bool(kind):
        return SpanLabel(prefix, kind)
    return None


def known_label(label: str) -> SpanLabel:
    """Returns the parts of a label; ValueError of one that is of no scheme."""
    parsed = parse_label(label)
    if parsed is None:
        raise ValueError(f"found the label {label!r}, allowed: {spelled('BIOES')}")
    return parsed


def fits(label: str, scheme: Scheme) -> bool:
    """Whether a label may occur under a scheme."""
    if scheme == "none":
        return True
    parsed = parse_label(label)
    return parsed is not None and (parsed.prefix == OUTSIDE or parsed.prefix in PREFIXES[scheme])


def scheme_of_names(names: Iterable[str]) -> Scheme:
    """Returns what a set of labels says of its scheme; it cannot tell IOB1 from IOB2.

    ``["B-PER", "I-PER", "O"]`` → IOB2; with an E or S → BIOES; ``["NN", "VB"]``, ``["O"]`` → none
    """
    parsed = [parse_label(name) for name in names]
    prefixes = {label.prefix for label in parsed if label is not None} - {OUTSIDE}
    if None in parsed or not prefixes:
        return "none"
    return "BIOES" if prefixes & {"E", "S"} else "IOB2"


def detect_scheme(sentences: Sequence[Sequence[str]]) -> Scheme:
    """Returns the scheme that a file is labelled by.

    "none" unless every label is O, or B, I, E, S with or without a type, and not all are O; BIOES
    if E or S occurs; else whichever of IOB2 and IOB1 fewer labels contradict (see `violations`),
    IOB2 in a draw.
    """
    named = scheme_of_names({label for labels in sentences for label in labels})
    if named != "IOB2":
        return named
    first = sum(len(violations(labels, "IOB1")) for labels in sentences)
    second = sum(len(violations(labels, "IOB2")) for labels in sentences)
    return "IOB1" if first < second else "IOB2"


def violations(labels: Sequence[str], scheme: Scheme) -> list[int]:
    """Returns the positions of labels that the scheme has otherwise at that place.

    IOB2 begins every span with B. IOB1 begins one with B only right after another of its type, else
    with I. BIOES has one token as S, others as B, any I, E. Whatever is wrong, `find_entities` has
    a reading. The labels are those of one sentence, each of which fits the scheme.
    """
    if scheme == "none":
        return []
    parsed = [SpanLabel(OUTSIDE, ""), *map(known_label, labels), SpanLabel(OUTSIDE, "")]
    triples = zip(parsed, parsed[1:], parsed[2:], strict=False)
    return [at for at, triple in enumerate(triples) if not _allowed(*triple, scheme)]


def complete_labels(found: Iterable[str], scheme: Scheme) -> tuple[str, ...]:
    """Returns the labels found, sorted, with those that the scheme has beside them.

    ``{"B-PER"}`` under IOB2 → ``("B-PER", "I-PER", "O")``: that a type's I occurs in no training
    sentence does not make it an unknown label of the dev set.
    """
    names = set(found)
    if scheme != "none":
        for kind in {label.type for label in map(known_label, names) if label.prefix != OUTSIDE}:
            names |= {f"{prefix}-{kind}" if kind else prefix for prefix in PREFIXES[scheme]}
        names.add(OUTSIDE)
    return tuple(sorted(names))


def spelled(scheme: Scheme) -> str:
    """Returns the labels of a scheme for an error: ``O, B-TYPE, I-TYPE``."""
    return ", ".join([OUTSIDE, *(f"{prefix}-TYPE" for prefix in PREFIXES[scheme])])


def _allowed(before: SpanLabel, here: SpanLabel, after: SpanLabel, scheme: Scheme) -> bool:
    follows = before.prefix != OUTSIDE and before.type == here.type
    if scheme == "IOB1":
        return here.prefix != "B" or follows
    if scheme == "IOB2":
        return here.prefix != "I" or follows
    continued = after.prefix in ("I", "E") and after.type == here.type
    if here.prefix in ("I", "E") and not (follows and before.prefix in ("B", "I")):
        return False
    return here.prefix not in ("B", "I") or continued
