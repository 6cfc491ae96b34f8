"""HTML elements: built as a tree, so that every tag is closed and every text escaped."""

from __future__ import annotations

import math
import re
from typing import Final, TypeAlias
from xml.etree import ElementTree

Element: TypeAlias = ElementTree.Element
Node: TypeAlias = ElementTree.Element | str | None

# HTML allows none of these, not even escaped.
CONTROLS: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef]")


def element(name: str, /, *children: Node, **attributes: str | int | float | None) -> Element:
    """Returns an element with its children.

    ``element("td", "a < b", class_="number")`` → ``<td class="number">a &lt; b</td>``.

    Args:
        name: of the tag.
        children: elements and texts in order; None is left out.
        attributes: an underscore at the end is dropped, as in ``class_``, any other stands for a
            hyphen, as in ``aria_label``; None is left out.
    """
    made = ElementTree.Element(name)
    for key, value in attributes.items():
        if value is not None:
            made.set(key.rstrip("_").replace("_", "-"), CONTROLS.sub("\ufffd", str(value)))
    append(made, *children)
    return made


def append(parent: Element, *children: Node) -> None:
    """Adds children, as `element` takes them, to the end of an element."""
    for child in children:
        if child is None:
            continue
        if isinstance(child, str):
            text = CONTROLS.sub("\ufffd", child)
            if len(parent):
                parent[-1].tail = (parent[-1].tail or "") + text
            else:
                parent.text = (parent.text or "") + text
        else:
            parent.append(child)


def serialise(root: Element) -> str:
    """Returns the HTML of an element."""
    return ElementTree.tostring(root, encoding="unicode", method="html", short_empty_elements=True)


def clip(text: str, *, limit: int) -> str:
    """Returns the first `limit` characters of a text, with an ellipsis where it goes on."""
    return text if len(text) <= limit else f"{text[:limit].rstrip()} …"


def number(value: float) -> str:
    """Returns a figure for reading: ``0.8431``, ``88.21``, ``1,204``, ``2.00e−05``, ``nan``."""
    size = abs(value)
    if isinstance(value, int) or size >= 1000:
        text = f"{value:,.0f}"
    elif size == 0 or not math.isfinite(value):
        text = f"{value:g}"
    elif size < 1e-3:
        text = f"{value:.2e}"
    else:
        text = f"{value:.4f}" if size < 10 else f"{value:.2f}"
    return text.replace("-", "−")


def percent(share: float) -> Element:
    """Returns ``12.34%``, as a column of figures has it."""
    return element("span", f"{share:.2%}")


def count(amount: int, noun: str) -> str:
    """Returns ``1 error``, ``1,204 errors``."""
    return f"{amount:,} {noun}" if amount == 1 else f"{amount:,} {noun}s"


def showing(shown: int, total: int, noun: str, tail: str = "") -> str:
    """Returns ``Showing 25 of 312 errors.``, ``All 7 errors.``, ``1 error.`` or ``No errors.``.

    Args:
        shown: how many follow.
        total: how many there are.
        noun: what they are.
        tail: what follows the noun, as ``" with errors"``.
    """
    if total == 0:
        return f"No {noun}s{tail}."
    whole = count(total, noun) + tail
    if shown < total:
        return f"Showing {shown:,} of {whole}."
    return f"{whole}." if total == 1 else f"All {whole}."
