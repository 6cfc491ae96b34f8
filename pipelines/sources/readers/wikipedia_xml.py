"""Wikipedia's own dumps: ``…-pages-articles.xml``, plain or packed."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import BinaryIO, Final

from bert_jax.errors import UserError
from bert_jax.files.read import shown
from bert_jax.pipelines.section import SourcesSection
from bert_jax.pipelines.sources.decompress import open_text
from bert_jax.pipelines.sources.documents import Document
from bert_jax.pipelines.sources.files import Cutting, FilePart, cut_file
from bert_jax.pipelines.sources.readers.records import PartReading
from bert_jax.pipelines.sources.readers.wikitext import wikitext_paragraphs

_PAGE_ID: Final = re.compile("[0-9]{1,18}")
_MAX_UTF8_BYTES: Final = 4
_BESIDE_TEXT: Final = 1 << 20  # bytes of a page that are not its text
_ARTICLES = "0"
_FILES_AND_CATEGORIES = ("6", "14")


def cut(path: str, name: str, section: SourcesSection, cutting: Cutting) -> list[FilePart]:
    """Returns the whole file as one part, since XML cannot be read from its middle.

    Wikipedia offers every large dump as several files, which workers share.
    """
    del section, cutting
    return cut_file(path, name, part_bytes=0, is_gap=None)


def read(reading: PartReading) -> Iterator[Document]:
    """Yields the articles (namespace 0) that are no redirects, with the page id and the title.

    Raises:
        UserError: the file is no dump, damaged or cut short.
    """
    dropped, most = {"file", "image", "category"}, reading.section.max_document_length
    return reading.documents(
        _pages(reading.part.path, dropped, most=most),
        lambda page: _article(page, dropped, most=most),
        place=lambda page: f'page "{_text(page, "title")}"',
    )


class _Bounded:
    """A file of which only so much is read before a page ends: the parser holds what it has read.

    A packed file of megabytes may be one page of terabytes.
    """

    def __init__(self, file: BinaryIO, path: str, limit: int) -> None:
        self._file, self._path, self._limit = file, path, limit
        self.unended = 0

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(size)
        self.unended += len(content)
        if self.unended > self._limit:
            raise UserError(
                f"{self._path}: found more than {self._limit:,} bytes without the end of a page, "
                "allowed: pages of max_document_length"
            )
        return content


def _pages(path: str, dropped: set[str], *, most: int) -> Iterator[ET.Element]:
    """Yields the pages; adds the wiki's names of file and category namespaces to ``dropped``."""
    with open_text(path) as opened:
        file = _Bounded(opened, path, most * _MAX_UTF8_BYTES + _BESIDE_TEXT)
        try:
            events = ET.iterparse(file, events=("start", "end"))
            _, root = next(events)
            if _name(root) != "mediawiki":
                raise UserError(
                    f"{path}: found <{_name(root)}>, allowed: <mediawiki>, a Wikipedia dump"
                )
            for event, element in events:
                if event == "start":
                    continue
                if _name(element) == "namespace" and element.get("key") in _FILES_AND_CATEGORIES:
                    dropped.add((element.text or "").lower())
                elif _name(element) == "page":
                    yield element
                    root.clear()  # or the whole dump would stay in memory
                    file.unended = 0
        # The last two: of an encoding that is not known, or not to the parser.
        except (ET.ParseError, StopIteration, LookupError, ValueError) as error:
            raise UserError(f"{path}: damaged or cut short XML ({error})") from error


def _article(page: ET.Element, dropped: set[str], *, most: int) -> Document | None:
    if _text(page, "ns") != _ARTICLES or page.find("{*}redirect") is not None:
        return None
    number = _text(page, "id")
    wikitext = _text(page, "revision/{*}text")
    if not _PAGE_ID.fullmatch(number):
        raise UserError(f"found the <id> {shown(number)}, allowed: a page id, a number")
    if len(wikitext) >= most:
        raise UserError(
            f"a page has {len(wikitext):,} characters, allowed: fewer than {most:,} "
            "(max_document_length)"
        )
    lines = wikitext_paragraphs(wikitext, dropped_namespaces=dropped)
    return Document(int(number), lines, number, _text(page, "title")) if lines else None


def _name(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _text(page: ET.Element, path: str) -> str:
    return page.findtext(f"{{*}}{path}") or ""
