"""Refuses a ``tokenizer.json`` whose regular expressions or replacements could run forever.

The tokenizers library matches with backtracking and has no limits. One repetition inside another
can take exponential time: ``(a+)+b`` needs minutes for thirty letters. Replacements can multiply:
thirty steps that double each letter make gigabytes of a word.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from bert_jax.errors import UserError
from bert_jax.files.read import shown

MOST_PATTERN: Final = 2000  # characters of an expression; that of GPT-4o has 300
MOST_REPETITIONS: Final = 2  # unlimited ones in a row
FEW: Final = 4  # times that a group which varies may be repeated
MOST_GROWTH: Final = 32  # characters that the normalizers may make of one

# The next atom or sign. A class may contain one level of classes: [\p{L}&&[^a-z]].
_TOKEN: Final = re.compile(
    r"\\(?:[pPxo]\{[^}]*\}|[kg]<[^>]*>|.)|\[\^?\]?(?:\\.|\[[^\]]*\]|[^\]\\])*\]"
    r"|\((?:\?(?:<[=!]|<\w+>|[:=!>~|]|[a-z-]+[:)]))?|[*+?]|\{\d*,?\d*\}|.",
    re.DOTALL,
)
_REFERENCE: Final = re.compile(r"\\(?:[1-9]|[kg]<)")
_BOUNDS: Final = re.compile(r"\{(\d*)(,?)(\d*)\}")
_SIGNS: Final = {"*": (0, math.inf), "+": (1, math.inf), "?": (0, 1)}
_SEQUENCES: Final = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "decoder": "decoders",
}


@dataclasses.dataclass
class _Group:
    """What is in a group so far."""

    varies: bool = False  # whether it can match one text in several ways
    repetitions: int = 0  # unlimited ones in this alternative
    most: int = 0  # in any alternative

    def repeat(self, number: int) -> None:
        """Adds unlimited repetitions."""
        self.repetitions += number
        self.most = max(self.most, self.repetitions)


def check_limits(spec: Mapping[str, Any], source: str) -> None:
    """Raises UserError if a step can take exponential time or memory. `source` names the file."""
    growth = 1
    steps = [
        (f"{part}.{step.get('type')}", step)
        for part, inner in _SEQUENCES.items()
        for step in parts_of(spec.get(part), inner)
    ]
    for place, step in steps:
        pattern, content = step.get("pattern"), step.get("content", step.get("prepend"))
        expression = pattern.get("Regex") if isinstance(pattern, dict) else None
        if isinstance(expression, str) and (reason := _danger(expression)) is not None:
            raise UserError(
                "tokenizer.expression",
                f"found {shown(expression)}, {reason}: it can take exponential time",
                place=f"{source}: {place}",
            )
        if isinstance(content, str) and place.startswith("normalizer"):
            text = pattern.get("String") if isinstance(pattern, dict) else None
            growth *= max(1, -(-len(content) // max(1, len(text or ""))))
    if growth > MOST_GROWTH:
        raise UserError(
            "tokenizer.growth",
            f"replacements can make {growth:,} characters of one, allowed: {MOST_GROWTH}",
            place=f"{source}: normalizer",
        )


def _danger(expression: str) -> str | None:
    """Returns why an expression may take exponential time, or None.

    Bounded repetitions count if they vary: ``(a{1,3})*`` has many ways to match one text.
    """
    if len(expression) > MOST_PATTERN:
        return f"longer than {MOST_PATTERN:,} characters"
    groups, last, before = [_Group()], _Group(), ""
    for token in (found[0] for found in _TOKEN.finditer(expression)):
        count = _count(token)
        if _REFERENCE.match(token):
            return "a reference to a group"
        if token.startswith("(") and not token.endswith(")"):
            groups.append(_Group())
        elif token == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1].varies |= last.varies
            groups[-1].repeat(last.most)
        elif token == "|":
            groups[-1].varies, groups[-1].repetitions = True, 0
        elif count is None or (token in "+?" and _count(before) is not None):
            last = _Group()  # a letter or a class; or the sign of a possessive or lazy repetition
        else:
            least, most = count
            if last.varies and most > FEW:
                return "a repetition in a repetition"
            groups[-1].varies |= least != most
            groups[-1].repeat(most == math.inf)
            if groups[-1].most > MOST_REPETITIONS:
                return f"more than {MOST_REPETITIONS} unlimited repetitions in a row"
        before = token
    return None


def _count(token: str) -> tuple[float, float] | None:
    """Returns the limits of a repetition, or None for another token."""
    if token in _SIGNS:
        return _SIGNS[token]
    if (bounds := _BOUNDS.fullmatch(token)) is None:
        return None
    least, comma, most = bounds.groups()
    low = int(least or 0)
    return low, (int(most) if most else math.inf if comma else low)


def parts_of(found: Any, inner: str) -> Iterator[Mapping[str, Any]]:
    """Yields the steps of a part of the pipeline, which may be a sequence or missing."""
    if isinstance(found, dict):
        if isinstance(steps := found.get(inner), list):
            for step in steps:
                yield from parts_of(step, inner)
        else:
            yield found
