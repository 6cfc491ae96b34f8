"""Splits any Unicode text into words, as BasicTokenizer of google-research/bert does.

The rules (google-research/bert, tokenization.py): drop NUL, U+FFFD and control characters; replace
all white space by spaces; put spaces around CJK ideographs; lower-case; decompose (NFD) and drop
accents; put spaces around punctuation. google-research/bert uses the character classes of Python's
``unicodedata``, so its words depend on the Python version. This module uses the classes of Unicode
14.0 (Python 3.11) under every Python, so that tokenizers with equal hashes give equal words.
Characters added by later Unicode versions are treated as ordinary characters.
"""

import re
import unicodedata
from collections.abc import Callable

UNICODE_VERSION = "14.0"

# Characters added in Unicode 15.0 and 15.1 that are accents, punctuation or control characters, or
# that NFD reorders. No older character changed between 14.0 and 15.1.
_NEWER = re.compile(
    "([\u0ece\U00010efd-\U00010eff\U00011241\U00011b00-\U00011b09\U00011f00\U00011f01"
    "\U00011f36-\U00011f3a\U00011f40-\U00011f4f\U00013439-\U00013440\U00013447-\U00013455"
    "\U0001e08f\U0001e4ec-\U0001e4ef])"
)
# Characters whose folding depends on their neighbours. Capital sigma has another lower case at the
# end of a word. NFD may reorder the others, which are marks outside category Mn.
_NEEDS_CONTEXT = re.compile(
    "[\u03a3\u1715\u1734\u1b44\u1baa\u1bf2\u1bf3\u302e\u302f\ua953\ua9c0\U000111c0\U00011235"
    "\U0001134d\U000116b6\U0001193d\U00016ff0\U00016ff1\U0001d15e-\U0001d166\U0001d16d-\U0001d172"
    "\U0001d1bb-\U0001d1c0]"
)
_ASCII_PUNCTUATION = "!-/:-@\\[-`{-~"
_ASCII_WORD = re.compile(f"[{_ASCII_PUNCTUATION}]|[^ {_ASCII_PUNCTUATION}]+")
_CHINESE = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b73f"
    "\U0002b740-\U0002b81f\U0002b820-\U0002ceaf\U0002f800-\U0002fa1f]"
)


def is_chinese(character: str) -> bool:
    """Returns whether google-research/bert treats ``character`` as a CJK ideograph."""
    return _CHINESE.match(character) is not None


def is_punctuation(character: str) -> bool:
    """Returns whether google-research/bert treats ``character`` as punctuation: ``"$"``, ``"。"``.

    Punctuation is all of category P, and all ASCII symbols.
    """
    if character.isascii():
        return "!" <= character <= "~" and not character.isalnum()
    return _category(character).startswith("P")


def is_word_character(character: str) -> bool:
    """Returns whether ``character`` is a letter, a number or a mark: ``"é"``, ``"7"``, ``"ि"``."""
    return _category(character)[0] in "LNM"


def is_attached(character: str) -> bool:
    """Returns whether ``character`` belongs to the one before it: a mark, or category Cf."""
    return _category(character).startswith(("M", "Cf"))


def fold(text: str, *, lower_case: bool, strip_accents: bool) -> str:
    """Lower-cases and drops accents: ``fold("Élan", lower_case=True, strip_accents=True)`` -> elan.

    Lower-casing is ``str.lower``, with its rule for a final sigma. Dropping accents decomposes the
    text (NFD) and removes category Mn. NFD also splits Hangul syllables into letters.
    """
    if not (lower_case or strip_accents) or (text.isascii() and not lower_case):
        return text
    if text.isascii():
        return text.lower()
    # Fold the text between newer characters separately: they are unassigned in Unicode 14.0, so the
    # final-sigma rule and NFD do not cross them.
    parts = _NEWER.split(text)
    for index in range(0, len(parts), 2):
        part = parts[index].lower() if lower_case else parts[index]
        if strip_accents:
            part = unicodedata.normalize("NFD", part)
            part = "".join(c for c in part if unicodedata.category(c) != "Mn")
        parts[index] = part
    return "".join(parts)


class WordSplitter:
    """Splits text into words and punctuation marks, the input of WordPiece.

    ``WordSplitter(lower_case=True).split("Élan, 世界!")`` -> ``["elan", ",", "世", "界", "!"]``
    """

    def __init__(
        self,
        *,
        lower_case: bool,
        strip_accents: bool | None = None,
        chinese: bool = True,
        final_sigma: bool = True,
    ) -> None:
        """Creates a splitter. The defaults are the rules of google-research/bert.

        Args:
            lower_case: whether to lower-case text (google-research/bert's ``do_lower_case``).
            strip_accents: whether to drop accents. By default the value of ``lower_case``.
            chinese: whether to put spaces around CJK ideographs.
            final_sigma: whether a capital sigma at the end of a word becomes ``ς``. In Hugging
                Face's tokenizers it becomes ``σ``, as elsewhere in a word.
        """
        self.lower_case = lower_case
        self.strip_accents = lower_case if strip_accents is None else strip_accents
        self.chinese = chinese
        self.final_sigma = final_sigma or not lower_case
        self._folds = lower_case or self.strip_accents
        self._whole = _ByCharacter(self._whole_rule)
        self._clean = _ByCharacter(self._clean_rule)
        self._punctuation = _ByCharacter(_space_punctuation)

    def split(self, text: str) -> list[str]:
        """Returns the words of ``text``, without white space.

        Lone surrogates are ordinary characters.
        """
        if text.isascii() and text.isprintable():
            return _ASCII_WORD.findall(text.lower() if self.lower_case else text)
        if not self.final_sigma:
            text = text.replace("Σ", "σ")
        if self._folds and _NEEDS_CONTEXT.search(text):
            return self._fold(text.translate(self._clean)).translate(self._punctuation).split()
        return text.translate(self._whole).split()

    def isolates(self, character: str) -> bool:
        """Returns whether ``character`` is always a word of its own."""
        return is_punctuation(character) or (self.chinese and is_chinese(character))

    def _fold(self, text: str) -> str:
        return fold(text, lower_case=self.lower_case, strip_accents=self.strip_accents)

    def _clean_rule(self, character: str) -> str:
        category = _category(character)
        if character in "\t\n\r" or category == "Zs":
            return " "
        if character in "\0\ufffd" or category in ("Cc", "Cf"):
            return ""
        return f" {character} " if self.chinese and is_chinese(character) else character

    def _whole_rule(self, character: str) -> str:
        folded = self._fold(self._clean_rule(character))
        return "".join(map(_space_punctuation, folded))


class _ByCharacter(dict[int, str]):
    """A table for ``str.translate``. Computes a replacement at its first use and stores it."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        super().__init__()
        self._rule = rule

    def __missing__(self, code: int) -> str:
        self[code] = replacement = self._rule(chr(code))
        return replacement


def _category(character: str) -> str:
    return "Cn" if _NEWER.match(character) else unicodedata.category(character)


def _space_punctuation(character: str) -> str:
    return f" {character} " if is_punctuation(character) else character
