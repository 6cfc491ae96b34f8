"""What WikiExtractor writes: ``<doc id= url= title=>`` … ``</doc>``, or its JSON lines."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any, Final

from bert_jax.errors import UserError
from bert_jax.pipelines.section import SourcesSection
from bert_jax.pipelines.sources.decompress import open_text
from bert_jax.pipelines.sources.documents import Document, text_lines
from bert_jax.pipelines.sources.files import Line, Part, cut_file, line_number, read_part
from bert_jax.pipelines.sources.problems import Problems
from bert_jax.pipelines.sources.readers.jsonl import read_objects
from bert_jax.pipelines.sources.readers.records import check_lengths, record_document

# The title is written as it stands, quotation marks and all.
_OPEN: Final = re.compile(r'<doc id="([^"]*)"(?: revid="[^"]*")? url="([^"]*)" title="(.*)">$')
_CLOSE: Final = "</doc>"
_JSON: Final = "wikiextractor_json"


def cut(path: str, name: str, *, part_bytes: int) -> list[Part]:
    """Cuts a file between its documents."""
    with open_text(path) as file:
        is_json = file.read(1) == b"{"
    parts = cut_file(
        path,
        name,
        part_bytes=part_bytes,
        is_gap=(lambda raw: True) if is_json else (lambda raw: raw.strip() == _CLOSE.encode()),
    )
    kind = _JSON if is_json else "wikiextractor"
    return [part._replace(format=kind) for part in parts]


def read(part: Part, section: SourcesSection, *, problems: Problems) -> Iterator[Document]:
    """Yields the documents of a part without their titles, which stand on the first line of each.

    The page id is the document's id. Entities such as ``&lt;``, which WikiExtractor writes by
    default, become characters.

    Raises:
        UserError: text outside a document, or one without an end.
    """
    start: Line | None = None
    found = None
    held: list[str] = []
    for line in read_part(part, max_line_length=section.max_line_length):
        text = line.text.strip()
        if start is None:
            found = _OPEN.match(text)
            if found:
                start = line
            elif text:
                raise UserError(f"{_place(part, line)}: found {text!r:.40}, allowed: <doc id=…>")
        elif text == _CLOSE and found:
            document = _document(start.offset, found, held)
            start, held = None, []
            if document is not None:
                try:
                    check_lengths(document, section)
                except UserError as error:
                    problems.add(UserError(f"{_place(part, line)}: {error}"))
                    continue
                yield document
        elif _OPEN.match(text):
            raise UserError(f"{_place(part, line)}: found <doc …> before {_CLOSE}")
        elif text:
            held.append(text)
    if start is not None:
        raise UserError(f"{_place(part, start)}: found no {_CLOSE} for it; is the file cut short?")


def read_json(part: Part, section: SourcesSection, *, problems: Problems) -> Iterator[Document]:
    """Yields the documents of a part of a file that was written with ``--json``."""

    def document(record: dict[str, Any], offset: int) -> Document | None:
        title = str(record.get("title", ""))
        found = record_document(
            record, place=offset, text_field="text", id_field="id", source=title
        )
        return found and _without_title(found)

    return read_objects(part, section, document, problems=problems)


def _document(offset: int, found: re.Match[str], held: list[str]) -> Document | None:
    number, _, title = found.groups()
    lines = text_lines(html.unescape("\n".join(held)))
    return _without_title(Document(offset, lines, number, html.unescape(title)))


def _without_title(document: Document) -> Document | None:
    if document.lines and document.lines[0] == document.source:
        document = document._replace(lines=document.lines[1:])
    return document if document.lines else None


def _place(part: Part, line: Line) -> str:
    return f"{part.path}: line {line_number(part.path, line.offset)}"
