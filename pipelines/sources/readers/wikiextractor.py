"""Reads WikiExtractor's output: ``<doc id= url= title=>`` … ``</doc>``, or its JSON lines."""

import html
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from bert_jax.errors import UserError
from bert_jax.pipelines.section import SourcesSection
from bert_jax.pipelines.sources import files
from bert_jax.pipelines.sources.documents import Document, text_lines
from bert_jax.pipelines.sources.readers.records import PartReading, read_objects

# The title is not escaped, so it may contain quotation marks.
_OPEN: Final = re.compile(r'<doc id="([^"]*)"(?: revid="[^"]*")? url="([^"]*)" title="(.*)">$')
_CLOSE: Final = "</doc>"


class _Article(NamedTuple):
    start: files.TextLine
    end: files.TextLine
    header: re.Match[str]
    lines: list[str]


def cut(path: str, name: str, section: SourcesSection, part_bytes: int) -> list[files.FilePart]:
    """Cuts a file between its documents."""
    del section
    is_json, end = _is_json(path), _CLOSE.encode()
    return files.cut_file(
        path, name, part_bytes=part_bytes, is_gap=lambda raw: is_json or raw.strip() == end
    )


def _is_json(path: str) -> bool:
    with files.open_text(path) as file:
        return file.read(1) == b"{"


def read(reading: PartReading) -> Iterator[Document]:
    """Yields the documents of a part, without a first line that repeats the title.

    The page id is the document's id. Entities in ``<doc>`` files, such as ``&lt;``, are unescaped.
    Raises UserError if there is text outside a document, or a document has no end.
    """
    if _is_json(reading.part.path):
        fields = {"text_field": "text", "id_field": "id"}
        reading = reading._replace(section=reading.section.model_copy(update=fields))

        def parse(record: dict[str, Any], offset: int) -> Document | None:
            return _without_title(reading.document(record, offset), str(record.get("title", "")))

        return read_objects(reading, parse)
    return reading.documents(
        _articles(reading.part, reading.section),
        _document,
        place=lambda article: reading.line_place(article.end),
    )


def _articles(part: files.FilePart, section: SourcesSection) -> Iterator[_Article]:
    start: files.TextLine | None = None
    header, held = None, list[str]()
    for line in files.read_part(part, max_line_length=section.max_line_length):
        text = line.text.strip()
        if start is None:
            header = _OPEN.match(text)
            if header:
                start = line
            elif text:
                raise UserError.wrong(
                    "wikiextractor.outside", f"{text!r:.40}", "<doc id=…>", place=_place(part, line)
                )
        elif text == _CLOSE and header:
            yield _Article(start, line, header, held)
            start, held = None, []
        elif _OPEN.match(text):
            raise UserError(
                "wikiextractor.nested",
                "found <doc …> inside a document, allowed: only after </doc>",
                place=_place(part, line),
            )
        elif text:
            held.append(text)
    if start is not None:
        raise UserError(
            "wikiextractor.unended",
            "found no </doc> for this document. Is the file cut short?",
            place=_place(part, start),
        )


def _document(article: _Article) -> Document | None:
    number, _, title = article.header.groups()
    lines = text_lines(html.unescape("\n".join(article.lines)))
    return _without_title(Document(article.start.offset, lines, number), html.unescape(title))


def _without_title(document: Document | None, title: str) -> Document | None:
    if document is not None and document.lines and document.lines[0] == title:
        document = document._replace(lines=document.lines[1:])
    return document if document is not None and document.lines else None


def _place(part: files.FilePart, line: files.TextLine) -> str:
    return f"{part.path}: line {files.line_number(part.path, line.offset)}"
