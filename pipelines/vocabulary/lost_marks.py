"""What dropping accents does to a language whose letters need them."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable
from itertools import chain, islice
from typing import Final

_LINES: Final = 20_000  # enough to tell a language by
_SHARE: Final = 0.1  # Vietnamese has 0.3, French 0.04, German 0.02


def lost_marks(lines: Iterable[str]) -> str | None:
    """Returns a warning if dropping accents changes a tenth of a text's letters, else None.

    Args:
        lines: of the text; the first 20,000 are looked at.
    """
    counts = Counter(chain.from_iterable(islice(lines, _LINES)))
    letters = {c: count for c, count in counts.items() if unicodedata.category(c)[0] in "LM"}
    changed = {c: count for c, count in letters.items() if _is_changed(c)}
    total = sum(letters.values())
    if not total or sum(changed.values()) < _SHARE * total:
        return None
    shown = " ".join(sorted(changed, key=lambda c: -changed[c])[:5])
    return (
        f"vocab.lower_case drops accents, which changes {sum(changed.values()) / total:.0%} of "
        f"this text's letters ({shown} …; Hangul syllables come apart): if they tell words apart, "
        f"set vocab.strip_accents: false"
    )


def _is_changed(character: str) -> bool:
    decomposed = unicodedata.normalize("NFD", character)
    kept = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
    return kept != character
