"""From marked-up documentation text to the English prose in it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Final

_BULLET: Final = re.compile(r"^(?:[*+•-]|\(?(?:\d{1,2}|[a-zA-Z])[.)])\s+(?=\S)")
_ROLE: Final = re.compile(r":[a-z][a-z:+-]*:(?=`)")
_LITERAL: Final = re.compile(r"``?([^`\n]+?)(?:``?|'(?!\w))")
_EMPHASIS: Final = re.compile(r"(?<![\w*])\*{1,2}(\w[^*\n]*?)\*{1,2}(?![\w*])")
_QUOTED_NAME: Final = re.compile(r"(?<!\w)\"([^\s\"]+)\"(?!\w)")
_REFERENCE: Final = re.compile(r"\s*\[(?:\d{1,2}|[A-Z]\w*\d+)\]_?(?!\w)")
_HYPHEN_BREAK: Final = re.compile(r"(?<=[a-z])- (?=[a-z])")

# What only code, signatures, tables, grammar rules and shell sessions hold.
_CODE: Final = re.compile(
    r"^#|::=|[=!<>+*/]=|->|=>|>>>|&&|\|\||\{|\}|\\|\$\w|__main__\b.*:|^\s*[|+]|[-=~^*]{4,}|\w\(.*\)\s*:$"
    r"|^(?:import|from|def|class|return|raise|print|async|await|@\w)\b[^.]*$"
    r"|(?<!\s)=(?!\s)|\s=\s|\s--\s.*\s--\s"
)
_WORD: Final = re.compile(r"(?<![\w.])[A-Za-z][a-z]*(?:['’-][a-z]+)*(?![\w(])")

_MIN_WORDS: Final = 4
_MIN_WORDS_UNENDED: Final = 6
_MIN_WORD_SHARE: Final = 0.65
_SENTENCE_END: Final = (".", "!", "?", ":", ";")


def prose_paragraphs(text: str) -> list[str]:
    r"""Returns the paragraphs of English in a docstring or help text, each on one line.

    ``"Return *x*.\n\n>>> f(1)\n2\n\nSee ``g`` for\nthe rest of it." ->
    ["Return x.", "See g for the rest of it."]`` but for the first, which is too short to keep.

    Dropped: code, doctest sessions, signatures, grammar, tables, headings, and lists of names.
    Kept without their marks: emphasis, literals, roles, bullets, footnote references.
    """
    paragraphs = (_plain(block) for block in _blocks(text))
    return [paragraph for paragraph in paragraphs if _is_prose(paragraph)]


def _blocks(text: str) -> Iterator[str]:
    """Yields runs of lines of one indentation, as one line each; doctest sessions are left out."""
    lines: list[str] = []
    indent = 0
    in_session = False
    for line in [*inspect.cleandoc(text).splitlines(), ""]:
        stripped = line.strip()
        bullet = _BULLET.match(stripped)
        here = len(line) - len(line.lstrip())
        ends = not stripped or bullet is not None or here != indent
        if lines and ends:
            yield " ".join(lines)
            lines = []
        if not stripped:
            in_session = False
            continue
        # A session's output follows its prompt, up to the next blank line.
        in_session = in_session or stripped.startswith((">>>", "... "))
        if in_session:
            continue
        if bullet is not None:
            stripped = stripped[bullet.end() :]
            here += bullet.end()
        if not lines:
            indent = here
        lines.append(stripped)
    if lines:
        yield " ".join(lines)


def _plain(block: str) -> str:
    block = _ROLE.sub("", block)
    block = _LITERAL.sub(r"\1", block)
    block = _EMPHASIS.sub(r"\1", block)
    block = _QUOTED_NAME.sub(r"\1", block)
    block = _REFERENCE.sub("", block)
    block = block.replace("::", ":").replace("`", "")
    return _HYPHEN_BREAK.sub("-", " ".join(block.split()))


def _is_prose(paragraph: str) -> bool:
    if _CODE.search(paragraph):
        return False
    words = len(_WORD.findall(paragraph))
    # Many docstrings leave out their full stop; without it, a heading or a table's line must not
    # pass for a sentence.
    ended = paragraph.rstrip("\"')”’").endswith(_SENTENCE_END)
    enough = _MIN_WORDS if ended else _MIN_WORDS_UNENDED
    return words >= enough and words >= _MIN_WORD_SHARE * len(paragraph.split())
