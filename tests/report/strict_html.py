"""A strict HTML parser, and functions that query the document."""

from collections.abc import Sequence
from html.parser import HTMLParser
from typing import NamedTuple
from xml.etree import ElementTree

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"}
# All tags that a report may contain. Any other tag is unescaped text.
NAMES = (
    "html head title style body header nav main section footer h1 h2 h3 p ul ol li dl dt dd div "
    "span strong small b a mark figure figcaption table caption thead tbody tr th td fieldset "
    "legend label script canvas"
)
KNOWN = VOID | set(NAMES.split())


class Tag(NamedTuple):
    """An opening tag, with the names of its ancestors."""

    name: str
    attributes: dict[str, str]
    parents: tuple[str, ...]


class Document(HTMLParser):
    """A parser that rejects unclosed, misnested and unknown tags, and duplicate ids."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[Tag] = []
        self.texts: list[tuple[str, str]] = []  # (parent tag, text)
        self.declarations: list[str] = []
        self._open: list[str] = []
        self._builder = ElementTree.TreeBuilder()
        self._ids: set[str] = set()
        self.feed(text)
        self.close()
        assert self._open == [], f"left open: {self._open}"
        assert self.declarations == ["DOCTYPE html"]
        self.root = self._builder.close()

    def handle_decl(self, decl: str) -> None:
        self.declarations.append(decl)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        assert tag in KNOWN, tag
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), (tag, names)
        attributes = {name: value or "" for name, value in attrs}
        if "id" in attributes:
            assert attributes["id"] not in self._ids, attributes["id"]
            self._ids.add(attributes["id"])
        self.tags.append(Tag(tag, attributes, tuple(self._open)))
        self._builder.start(tag, attributes)
        if tag in VOID:
            self._builder.end(tag)
        else:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        raise AssertionError(f"<{tag}/> is no HTML")

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open[-1] == tag, (self._open, tag)
        self._open.pop()
        self._builder.end(tag)

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts.append((self._open[-1], data))
            self._builder.data(data)
        else:
            assert not data.strip(), data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"comment {data!r}")

    def handle_pi(self, data: str) -> None:
        raise AssertionError(f"instruction {data!r}")

    def named(self, name: str) -> list[Tag]:
        """Returns all tags with a name."""
        return [tag for tag in self.tags if tag.name == name]

    @property
    def text(self) -> str:
        """Visible text of the document."""
        return " ".join(
            " ".join(
                text for parent, text in self.texts if parent not in ("style", "script")
            ).split()
        )


def words(element: ElementTree.Element) -> str:
    """Returns the text of an element."""
    return " ".join("".join(element.itertext()).split())


def rows(root: ElementTree.Element, caption: str) -> dict[str, list[str]]:
    """Returns {first cell: other cells} of the table whose caption contains `caption`."""
    for table in root.iter("table"):
        if (found := table.find("caption")) is not None and caption in (found.text or ""):
            return {
                words(row[0]): [words(cell) for cell in row[1:]]
                for row in table.iterfind("tbody/tr")
            }
    raise AssertionError(caption)


def items(root: ElementTree.Element) -> list[str]:
    """Returns the text of every listed example."""
    return [
        words(item)
        for listed in root.iter("ol")
        if listed.get("class") == "examples"
        for item in listed
    ]


def read_section(html: str) -> ElementTree.Element:
    """Parses an HTML fragment."""
    return Document(f"<!DOCTYPE html><section>{html}</section>").root


def read(text: str) -> Document:
    """Parses a report and checks the rules for all reports."""
    document = Document(text)
    assert document.tags[0].name == "html"
    assert document.tags[0].attributes["lang"] == "en"
    assert len(document.named("h1")) == 1
    for tag in document.tags:
        assert not [name for name in tag.attributes if name.startswith("on")], tag
        for name in ("src", "href", "action", "data", "srcset", "poster"):
            address = tag.attributes.get(name, "#")
            assert address.startswith("#"), (tag.name, address[:60])
    for tag in document.named("a"):
        assert tag.attributes["href"][1:] in {other.attributes.get("id") for other in document.tags}
    for tag in document.named("th"):
        assert tag.attributes["scope"] in ("row", "col")
    for tag in document.tags:
        if tag.attributes.get("role") in ("img", "group") or tag.name == "input":
            assert tag.attributes["aria-label"], tag
    for tag in document.named("canvas"):
        assert tag.parents[-1] == "label", tag
    style = "".join(text for parent, text in document.texts if parent == "style")
    assert "url(" not in style
    assert "@import" not in style
    assert "prefers-color-scheme: dark" in style
    assert "@media print" in style
    return document
