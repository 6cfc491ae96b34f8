"""Reads Wikipedia's dumps (``…-pages-articles.xml``, plain or packed) and their wikitext."""

import html
import re
import xml.etree.ElementTree as ET
from collections.abc import Collection, Iterator
from typing import Any, BinaryIO, Final

from bert_jax.errors import UserError, first_line
from bert_jax.files.read import shown
from bert_jax.pipelines.section import SourcesSection
from bert_jax.pipelines.sources.documents import Document
from bert_jax.pipelines.sources.files import FilePart, cut_file, open_text
from bert_jax.pipelines.sources.readers.records import PartReading, too_long

_LIST_MARKS: Final = frozenset("*#:;")
_DROPPED_TAGS: Final = frozenset(
    (
        *("ref", "table", "gallery", "math", "chem", "timeline", "imagemap", "score", "source"),
        *("syntaxhighlight", "references", "pre", "hiero", "graph", "templatestyles"),
    )
)
_EMPTY_BRACKETS: Final = re.compile(r"\s*[(（][\s,;:，；]*[)）]")
_SPACES: Final = re.compile(r"[ \t\xa0]+")
# Opening bracket by closing bracket. For each unclosed bracket, the parser reads the rest of the
# text, at about ten million characters per second. `_MOST_WORK` limits the product of the number of
# unclosed brackets and the length of the text.
_PAIRS: Final = {"}}": "{{", "]]": "[[", ">": "<"}
_BRACKETS: Final = re.compile(r"\{\{|\}\}|\[\[|\]\]|<|>")
_MOST_WORK: Final = 20_000_000
_MAGIC_WORD: Final = re.compile(r"__[A-Z]+__")

_PAGE_ID: Final = re.compile("[0-9]{1,18}")
_MAX_UTF8_BYTES: Final = 4
_BESIDE_TEXT: Final = 1 << 20  # maximum bytes of a page without its text
_ARTICLES = "0"
_FILES_AND_CATEGORIES = ("6", "14")


def wikitext_paragraphs(wikitext: str, *, dropped_namespaces: Collection[str]) -> list[str]:
    r"""Returns the paragraphs of a page: ``"'''A''' is [[b|B]].\n== C ==\n* d" -> ["A is B."]``.

    Only text passages remain (BERT paper, section 3.1). Templates, tables, lists, headings,
    references, pictures with their captions, and categories are dropped. ``dropped_namespaces`` are
    the lower-case names of the namespaces of files and categories, in the wiki's language and in
    English. Raises UserError if the text is nested too deeply or has too many unclosed brackets.
    """
    import mwparserfromhell  # imported here, because only the extra `data` installs it

    _refuse_unended(wikitext)
    try:
        code = mwparserfromhell.parse(wikitext, skip_style_tags=False)
        text = "".join(_visible(code, dropped_namespaces))
    except (RecursionError, mwparserfromhell.parser.ParserError) as error:
        raise UserError(
            "wikipedia.wikitext", f"found wikitext that cannot be parsed ({first_line(error)})"
        ) from None
    text = _MAGIC_WORD.sub("", _EMPTY_BRACKETS.sub("", text))
    lines = (_SPACES.sub(" ", line).strip() for line in text.split("\n"))
    return [line for line in lines if any(map(str.isalnum, line))]


def _refuse_unended(wikitext: str) -> None:
    """Raises UserError if unclosed brackets would make the parser too slow."""
    opened = sum(map(wikitext.count, _PAIRS.values()))
    if opened * len(wikitext) <= _MOST_WORK:
        return
    counts = dict.fromkeys(_PAIRS.values(), 0)
    for token in _BRACKETS.findall(wikitext):
        if token in counts:
            counts[token] += 1
        else:
            counts[_PAIRS[token]] = max(0, counts[_PAIRS[token]] - 1)
    if (unended := sum(counts.values())) * len(wikitext) > _MOST_WORK:
        raise UserError("wikipedia.brackets", f"found {unended:,} unclosed brackets, allowed: few")


def _visible(code: Any, dropped: Collection[str]) -> Iterator[str]:
    from mwparserfromhell import nodes

    in_list = False  # True until the end of the list item's line
    for node in code.nodes:
        if isinstance(node, nodes.Tag) and str(node.wiki_markup or "") in _LIST_MARKS:
            in_list = True
            continue
        for text in _node_text(node, dropped):
            if in_list:
                _, end, rest = text.partition("\n")
                if not end:
                    continue
                in_list = False
                yield end + rest
            else:
                yield text


def _node_text(node: Any, dropped: Collection[str]) -> Iterator[str]:
    from mwparserfromhell import nodes

    if isinstance(node, nodes.Text):
        yield str(node)
    elif isinstance(node, nodes.HTMLEntity):
        yield html.unescape(str(node))  # half a surrogate pair becomes U+FFFD
    elif isinstance(node, nodes.Wikilink):
        space, colon, _ = str(node.title).partition(":")
        if not (colon and space.strip().lower() in dropped):
            yield from _visible(node.text if node.text is not None else node.title, dropped)
    elif isinstance(node, nodes.ExternalLink):
        if node.title is not None:
            yield from _visible(node.title, dropped)
    elif isinstance(node, nodes.Tag):
        name = str(node.tag).strip().lower()
        if name == "br":
            yield "\n"
        elif name not in _DROPPED_TAGS and node.contents is not None:
            yield from _visible(node.contents, dropped)


def cut(path: str, name: str, section: SourcesSection, part_bytes: int) -> list[FilePart]:
    """Returns the whole file as one part: XML cannot be read from its middle."""
    del section, part_bytes
    return cut_file(path, name, part_bytes=0, is_gap=None)


def read(reading: PartReading) -> Iterator[Document]:
    """Yields the articles (namespace 0), but no redirects. The page id is the document's id.

    Raises UserError if the file is not a dump, or is damaged or truncated.
    """
    dropped, most = {"file", "image", "category"}, reading.section.max_document_length
    return reading.documents(
        _pages(reading.part.path, dropped, most=most),
        lambda page: _article(page, dropped, reading.section),
        place=lambda page: f'page "{_text(page, "title")}"',
    )


class _Bounded:
    """A file that limits the bytes of each page, because the parser has whole pages in memory.

    Without a limit, a packed file of megabytes could unpack to a page of terabytes.
    """

    def __init__(self, file: BinaryIO, path: str, limit: int) -> None:
        self._file, self._path, self._limit = file, path, limit
        self.unended = 0

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(size)
        self.unended += len(content)
        if self.unended > self._limit:
            raise UserError(
                "wikipedia.page_unended",
                f"found no end of a page in {self._limit:,} bytes (max_document_length)",
                place=self._path,
            )
        return content


def _pages(path: str, dropped: set[str], *, most: int) -> Iterator[ET.Element]:
    """Yields the pages. Adds the wiki's names of file and category namespaces to ``dropped``."""
    with open_text(path) as opened:
        file = _Bounded(opened, path, most * _MAX_UTF8_BYTES + _BESIDE_TEXT)
        try:
            events = ET.iterparse(file, events=("start", "end"))
            _, root = next(events)
            if _name(root) != "mediawiki":
                raise UserError.wrong(
                    "wikipedia.root", f"<{_name(root)}>", "<mediawiki>", place=path
                )
            for event, element in events:
                if event == "start":
                    continue
                if _name(element) == "namespace" and element.get("key") in _FILES_AND_CATEGORIES:
                    dropped.add((element.text or "").lower())
                elif _name(element) == "page":
                    yield element
                    root.clear()  # frees the page's memory
                    file.unended = 0
        # LookupError and ValueError are raised for an unknown or unsupported encoding.
        except (ET.ParseError, StopIteration, LookupError, ValueError) as error:
            raise UserError(
                "wikipedia.xml", f"damaged or truncated XML ({error})", place=path
            ) from error


def _article(page: ET.Element, dropped: set[str], section: SourcesSection) -> Document | None:
    if _text(page, "ns") != _ARTICLES or page.find("{*}redirect") is not None:
        return None
    number = _text(page, "id")
    wikitext = _text(page, "revision/{*}text")
    if not _PAGE_ID.fullmatch(number):
        raise UserError.wrong(
            "wikipedia.page_id", f"the <id> {shown(number)}", "a page id, a number"
        )
    if len(wikitext) >= section.max_document_length:
        raise too_long("page", len(wikitext), section, "max_document_length")
    lines = wikitext_paragraphs(wikitext, dropped_namespaces=dropped)
    return Document(int(number), lines, number) if lines else None


def _name(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _text(page: ET.Element, path: str) -> str:
    return page.findtext(f"{{*}}{path}") or ""
