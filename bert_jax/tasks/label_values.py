"""Values of labels as programs write them: missing values, decimals and lists in text."""

import decimal
import math
import re
from typing import Any, Final

# Texts that pandas and Python write for a missing value, in lower case.
_MISSING: Final = frozenset(("nan", "none", "null", "na", "n/a", "#n/a", "<na>", "nat"))

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
