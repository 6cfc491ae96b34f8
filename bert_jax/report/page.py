"""The frame of a report, and the parts that every section is put together from."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from bert_jax.report.html import Element, Node, element, number, serialise
from bert_jax.report.style import STYLE

SHOWN: Final = 25  # examples in a list; how many there are is always said
TEXT_LIMIT: Final = 1000  # characters of one text

Cell: TypeAlias = str | float | Element


def page(
    *, title: str, header: Sequence[Node], sections: Sequence[Element], footer: str, script: str
) -> str:
    """Returns a whole HTML document that loads nothing.

    A content security policy forbids it to: no address is allowed, and of scripts only the one
    given, by its hash, so that not even a text that slipped in as HTML could run.

    Args:
        title: of the window and of the page.
        header: what stands below the title.
        sections: from `section`; they get their anchors here, and the contents list them.
        footer: a line at the end.
        script: JavaScript, or "" for none.
    """
    hashed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'" + (
        f"; script-src 'sha256-{hashed}'" if script else ""
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", STYLE),
    )
    links = [
        element("li", element("a", heading, href=f"#{anchor}"))
        for heading, anchor in _anchored(sections)
    ]
    body = element(
        "body",
        element("header", element("h1", title), *header),
        element("nav", element("ul", *links), aria_label="Contents") if links else None,
        element("main", *sections),
        element("footer", element("p", footer)),
        element("script", script) if script else None,
    )
    return "<!DOCTYPE html>\n" + serialise(element("html", head, body, lang="en")) + "\n"


def _anchored(sections: Iterable[Element]) -> list[tuple[str, str]]:
    """Gives every section an id of its own and returns headings with ids."""
    taken: set[str] = set()
    found = []
    for each in sections:
        heading = "".join(each[0].itertext())
        anchor = base = re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-") or "section"
        again = 2
        while anchor in taken:
            anchor, again = f"{base}-{again}", again + 1
        taken.add(anchor)
        each.set("id", anchor)
        found.append((heading, anchor))
    return found


def section(heading: str, *children: Node) -> Element:
    """Returns a section with its heading."""
    return element("section", element("h2", heading), *children)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    caption: str,
    marks: Sequence[str | None] = (),
) -> Element:
    """Returns a table whose first column names the rows; numbers stand right.

    Args:
        columns: headings.
        rows: a cell for each column.
        caption: what the table tells.
        marks: of the rows, from the first: "best", "total" or None.
    """
    listed = list(rows)
    head = []
    for at, name in enumerate(columns):
        numbers = bool(listed) and all(isinstance(row[at], int | float) for row in listed)
        head.append(element("th", name, scope="col", class_="number" if numbers else None))
    body = []
    for at, row in enumerate(listed):
        cells = [_cell("th", row[0], scope="row"), *(_cell("td", cell) for cell in row[1:])]
        body.append(element("tr", *cells, class_=marks[at] if at < len(marks) else None))
    made = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *head)),
        element("tbody", *body),
    )
    return scrolling(made, name=caption)


def _cell(name: str, cell: Cell, *, scope: str | None = None) -> Element:
    if isinstance(cell, int | float):
        return element(name, number(cell), class_="number", scope=scope)
    return element(name, cell, scope=scope)


def scrolling(content: Element, *, name: str) -> Element:
    """Returns what may be wider than the screen in a frame that scrolls, by keyboard too."""
    return element("div", content, class_="scroll", tabindex=0, role="group", aria_label=name)


def facts(pairs: Iterable[tuple[str, Node]], *, class_: str = "facts") -> Element:
    """Returns names with their values, side by side as far as there is room."""
    return element(
        "dl",
        *(element("div", element("dt", name), element("dd", value)) for name, value in pairs),
        class_=class_,
    )


def quiet(text: str) -> Element:
    """Returns a remark."""
    return element("p", text, class_="quiet")


def examples(items: Iterable[Element]) -> Element:
    """Returns a list of examples, from `element("li", …)`."""
    return element("ol", *items, class_="examples")
