"""Recognises HTML, XML, RTF, WARC, subtitles and labels of fastText."""

import re
from collections.abc import Sequence
from typing import Final

_STARTS: Final = (
    (re.compile(r"(<!--.*?-->\s*)?<(!doctype )?html\b", re.IGNORECASE | re.DOTALL), "HTML"),
    (re.compile(r"<\?xml\s"), "XML"),
    (re.compile(r"\{\\rtf\d"), "RTF"),
    (re.compile(r"WARC/\d"), "a WARC file"),
    (re.compile(r"WEBVTT\b[^\n]*\n[^\n]*\n"), "WebVTT subtitles"),
    (re.compile(r"\[Script Info\]\s*\n"), "ASS subtitles"),
    (
        re.compile(r"(\d+\s*\n)?\s*\d+:\d\d(:\d\d)?[.,]\d+(\s*-->\s*|,)\d+:\d\d(:\d\d)?[.,]\d+"),
        "SRT subtitles",
    ),
)
_LINES: Final = (
    (re.compile(r"\{\d+\}\{\d*\}.*"), "MicroDVD subtitles"),
    (re.compile(r"__label__\S+\s.*"), "labels of fastText"),
)
_NAMES: Final = (
    "a|article|aside|b|blockquote|body|br|button|center|code|dd|div|dl|dt|em|figure|font|footer|"
    "form|h[1-6]|head|header|hr|i|img|input|li|link|main|meta|nav|ol|p|pre|script|section|small|"
    "span|strong|style|sub|sup|table|tbody|td|th|thead|title|tr|u|ul|video"
)
_HTML_TAG: Final = rf"</?(?:{_NAMES})(?:\s[^<>]*)?/?>"
_HTML_LINE: Final = re.compile(rf"{_HTML_TAG}|{_HTML_TAG}.*{_HTML_TAG}|.*<br\s*/?>", re.IGNORECASE)
_TAG: Final = re.compile(r"<!.*?>|<(/?)([A-Za-z][\w:.-]*)(?:\s[^<>]*?)?(/?)>", re.DOTALL)
_HTML_NAME: Final = re.compile(_NAMES, re.IGNORECASE)
_VOID: Final = ("br", "hr", "img", "input", "link", "meta")  # elements without an end


def markup_kind(text: str, lines: Sequence[str], *, whole: bool) -> str | None:
    """Returns what markup a text is, or None. `lines` are its whole lines, stripped, not blank.

    A sentence about ``<p>`` is prose. In markup, most lines begin and end with a tag, or all text
    is in elements.
    """
    found = next((name for sign, name in _STARTS if sign.match(text)), None)
    for sign, name in _LINES:
        if found is None and len(lines) > 1 and all(map(sign.fullmatch, lines)):
            found = name
    if found is not None or "<" not in text:
        return found
    tagged = sum(line.endswith(">") and bool(_HTML_LINE.fullmatch(line)) for line in lines)
    # Documents of Markdown may have tables in HTML.
    if tagged > 1 and tagged >= len(lines) * (0.5 if text.startswith("<") else 0.75):
        return "HTML"
    return _elements_kind(text, whole=whole) if text.startswith("<") else None


def _elements_kind(text: str, *, whole: bool) -> str | None:
    """Returns "HTML" or "XML" if no text is outside elements, otherwise None."""
    names: list[str] = []  # of the open elements
    first, at, ends = "", 0, 0
    for tag in _TAG.finditer(text):
        if not names and text[at : tag.start()].strip():
            return None
        is_end, name, is_empty = tag.groups()
        at, first = tag.end(), first or name or ""
        if is_end and name in names:
            del names[names.index(name) :]  # also elements whose ends are omitted
            ends += 1
        elif is_end:
            return None
        elif name and not is_empty and name.lower() not in _VOID:
            names.append(name)
    if not ends or (whole and (names or text[at:].strip())):
        return None
    return "HTML" if _HTML_NAME.fullmatch(first) else "XML"
