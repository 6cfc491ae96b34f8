"""Recognises JSON, also with faults, and values that Python printed."""

import json
import re
from collections.abc import Sequence
from typing import Final

JSON_LINES: Final = "JSON lines without the suffix .jsonl"

_SEPARATOR: Final = re.compile(r"[\s,]*")
_PAIR: Final = re.compile(r'["\d\]}el]\s*[,:]')  # the end of a value or a key, and what follows
_LETTER: Final = re.compile(r"\w")

_STRING: Final = r"""[bru]{0,2}(?:'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")"""
_NUMBERS: Final = r"(?:\s*-?\d+\s*,)*"
_DICT: Final = re.compile(rf"\{{\s*{_STRING}\s*:.*\}}\s*,?")
_LIST: Final = re.compile(
    rf"[\[(]{_NUMBERS}\s*{_STRING}\s*,.*[\])]\s*,?|\[{_NUMBERS}\s*{_STRING}\s*\]\s*,?"
)
_DICTS: Final = re.compile(rf"[\[(]\s*\{{\s*{_STRING}\s*:.*\}}\s*,?\s*[\])]", re.DOTALL)
_DICT_START: Final = re.compile(rf"[\[(]?\s*\{{\s*{_STRING}\s*:")
_LONG_DICT: Final = re.compile(rf"{_DICT_START.pattern}[^\n]*[,'\"(\[{{]\s*\n\s*{_STRING}\s*[:,]")

_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*",?')
_DOUBLED: Final = re.compile(r'"(?:[^"]|"")*"')
_ESCAPE: Final = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_FEWEST: Final = 3  # number of lines that show strings by their ends or doubled quotes
_LONG: Final = 500  # mean number of characters of a line of documents
_UTTERANCE: Final = re.compile(r"""[.!?,;:…—–。！？)'-]",?$""")


def json_kind(text: str, *, whole: bool) -> str | None:
    """Returns what JSON a text is, or None. If it is not whole, it may end within a value."""
    decoder, at, values, several_lines = json.JSONDecoder(), 0, 0, False
    while at < len(text):
        if text[at] not in "[{":
            return None
        try:
            _, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            # JSON up to the end of the text, or up to a string that does not end in it.
            is_cut = error.pos >= len(text) - 8 or error.msg.startswith("Unterminated string")
            if is_cut and not whole:
                end = len(text)
            elif _is_damaged(text[at:], error.pos - at, is_cut=is_cut):
                kind = "a JSON array" if text[0] == "[" else "JSON objects"
                return f"{kind} with a fault in line {error.lineno}"
            else:
                return None
        except (RecursionError, ValueError):
            return None
        several_lines = several_lines or "\n" in text[at:end]
        after = _SEPARATOR.match(text, end)
        at, values = after.end() if after else end, values + 1
    if not values:
        return None
    if text[0] == "[":
        return "a JSON array" if values == 1 else "JSON lists"
    if several_lines:
        return "a JSON object of several lines"
    return JSON_LINES


def _is_damaged(text: str, fault: int, *, is_cut: bool) -> bool:
    """Returns whether a text is JSON before a fault: on several lines, or up to its brackets.

    Prose may begin with a bracket and a quotation, but such a bracket seldom spans two lines.
    """
    if not _PAIR.search(text, 0, fault + 1):
        return False
    is_key = is_cut and '":' in text[:fault]
    return is_key or "\n" in text[:fault].strip() or not _LETTER.search(text, fault)


def python_kind(text: str, lines: Sequence[str], *, whole: bool) -> str | None:
    """Returns what Python value a text is, or None. `lines` are its whole lines, not blank."""
    if not text.startswith(("[", "{", "(")):
        return None
    if lines and all(map(_DICT.fullmatch, lines)):
        return "dicts of Python"
    if lines and all(map(_LIST.fullmatch, lines)):
        return "lists of Python"
    if _DICTS.fullmatch(text.rstrip()):
        return "a list of Python"
    if _LONG_DICT.match(text) or (not whole and not lines and _DICT_START.match(text)):
        return "a dict of Python"
    return None


def strings_kind(lines: Sequence[str]) -> str | None:
    """Returns the format of a file with a quoted string on each line, or None.

    Lines of dialogue may be quoted too. Strings differ from them by escapes and doubled quotes, by
    ends without punctuation, or by their length.
    """
    if not lines or not lines[0].startswith('"'):
        return None
    if all(map(_QUOTED.fullmatch, lines)):
        plain = sum(not _UTTERANCE.search(line) for line in lines)
        several = len(lines) >= _FEWEST and 2 * plain > len(lines)
        long = sum(map(len, lines)) > _LONG * len(lines)
        return "JSON strings" if several or long or any(map(_ESCAPE.search, lines)) else None
    doubled = len(lines) >= _FEWEST and all(map(_DOUBLED.fullmatch, lines))
    return "a CSV table" if doubled else None
