"""Values of labels as programs write them: missing values, decimals and lists in text."""

import decimal
import math
import re
import unicodedata
from collections.abc import Collection
from typing import Any, Final

# Texts that pandas, Python, SNLI ("-"), Weka ("?") and SQL ("\\N") write for a missing value, in
# lower case.
_MISSING: Final = frozenset(
    ("nan", "none", "null", "na", "n/a", "#n/a", "<na>", "nat", "-", "?", "\\n")
)

_INVISIBLE: Final = ("Cc", "Cf")
_WHOLE: Final = re.compile(r"[+]?(-?)0*(\d+)")

_QUOTED: Final = r"""(?:'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")"""
_ITEM: Final = rf"(?:{_QUOTED}|[-+.\w]++)"
_SEVERAL: Final = rf"{_ITEM}(?:(?:\s*[,:]\s*|\s+){_ITEM})++(?:\s*,)?"
_ONE: Final = rf"{_QUOTED}(?:\s*,)?|[-+]?\d[\d.e+-]*+"
# `[neutral]` and `(0, 18]` are names. In parentheses, the first item is in quotes.
_LIST: Final = re.compile(
    rf"(?:\w++\()?(?:\[\s*(?:{_SEVERAL}|{_ONE})?\s*\]|\{{\s*(?:{_SEVERAL}|{_ONE})?\s*\}})\)?"
    rf"|\(\s*{_QUOTED}\s*,(?:\s*{_ITEM}\s*,?)*+\s*\)"
)


def plain_label(found: Any) -> Any:
    """Returns a missing number as None, and a decimal of Parquet as a number."""
    if isinstance(found, decimal.Decimal):
        found = int(found) if found.is_finite() and found == int(found) else float(found)
    return None if isinstance(found, float) and math.isnan(found) else found


def is_missing_text(label: Any) -> bool:
    """Returns whether a label is a text that stands for a missing value: ``"nan"``."""
    return isinstance(label, str) and label.lower() in _MISSING


def is_list_text(label: str) -> bool:
    """Returns whether a label is a list or set written as text: ``"['a', 'c']"``, ``"[0 2]"``."""
    return _LIST.fullmatch(label) is not None


def look(label: str) -> str:
    """Returns what a reader sees in a label: ``"Yes"`` → ``"yes"``, ``"05"`` → ``"5"``.

    Equal looks differ in case, invisible characters, composed letters or the spelling of a number.
    """
    shown = unicodedata.normalize("NFKC", label).casefold()
    shown = "".join(each for each in shown if unicodedata.category(each) not in _INVISIBLE)
    whole = _WHOLE.fullmatch(shown)
    return shown if whole is None else f"{whole[1]}{whole[2]}"


def printable(label: str) -> str:
    """Returns a label with escapes for invisible and decomposed characters."""
    plain = unicodedata.is_normalized("NFC", label)
    return label if plain and label.isprintable() else ascii(label)[1:-1]


def label_parts(label: str, names: Collection[str]) -> tuple[str, list[str]] | None:
    """Returns the separator and the parts of a label that consists of other labels, or None.

    ``label_parts("joy,fear", {"joy", "fear", "joy,fear"})`` → ``(",", ["joy", "fear"])``
    """
    for separator in ",;| ":
        parts = [part.strip() for part in label.split(separator)]
        if parts[1:] and all(part in names for part in parts):
            return separator, parts
    return None
