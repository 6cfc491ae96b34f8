"""Wikipedia's own dumps: ``…-pages-articles.xml``, plain or packed."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator

from bert_jax.errors import UserError
from bert_jax.pipelines.section import SourcesSection
from bert_jax.pipelines.sources.decompress import open_text
from bert_jax.pipelines.sources.documents import Document
from bert_jax.pipelines.sources.files import Cutting, FilePart, cut_file
from bert_jax.pipelines.sources.problems import Problems
from bert_jax.pipelines.sources.readers.records import read_records
from bert_jax.pipelines.sources.readers.wikitext import wikitext_paragraphs

_ARTICLES = "0"
_FILES_AND_CATEGORIES = ("6", "14")


def cut(path: str, name: str, section: SourcesSection, cutting: Cutting) -> list[FilePart]:
    """Returns the whole file as one part, since XML cannot be read from its middle.

    Wikipedia offers every large dump as several files, which workers share.
    """
    del section, cutting
    parts = cut_file(path, name, part_bytes=0, is_gap=None)
    return [part._replace(format="wikipedia_xml") for part in parts]


def read(part: FilePart, section: SourcesSection, problems: Problems) -> Iterator[Document]:
    """Yields the articles (namespace 0) that are no redirects, with the page id and the title.

    Raises:
        UserError: the file is no dump, damaged or cut short.
    """
    dropped = {"file", "image", "category"}
    return read_records(
        _pages(part.path, dropped),
        lambda page: _article(page, dropped),
        place=lambda page: f'page "{_text(page, "title")}"',
        part=part,
        section=section,
        problems=problems,
    )


def _pages(path: str, dropped: set[str]) -> Iterator[ET.Element]:
    """Yields the pages; adds the wiki's names of file and category namespaces to ``dropped``."""
    with open_text(path) as file:
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
        except (ET.ParseError, StopIteration) as error:
            raise UserError(f"{path}: damaged or cut short XML ({error})") from error


def _article(page: ET.Element, dropped: set[str]) -> Document | None:
    if _text(page, "ns") != _ARTICLES or page.find("{*}redirect") is not None:
        return None
    number = _text(page, "id")
    wikitext = _text(page, "revision/{*}text")
    if not number:
        raise UserError("found no <id>, allowed: a page id")
    lines = wikitext_paragraphs(wikitext, dropped_namespaces=dropped)
    return Document(int(number), lines, number, _text(page, "title")) if lines else None


def _name(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _text(page: ET.Element, path: str) -> str:
    return page.findtext(f"{{*}}{path}") or ""
