"""JSON lines: an object per line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from bert_jax.errors import UserError
from bert_jax.pipelines.section import SourcesSection
from bert_jax.pipelines.sources.documents import Document
from bert_jax.pipelines.sources.files import Part, cut_file, line_number, read_part
from bert_jax.pipelines.sources.problems import Problems
from bert_jax.pipelines.sources.readers.records import check_lengths, record_document


def cut(path: str, name: str, *, part_bytes: int) -> list[Part]:
    """Cuts a file between any two lines."""
    parts = cut_file(path, name, part_bytes=part_bytes, is_gap=lambda raw: True)
    return [part._replace(format="jsonl") for part in parts]


def read(part: Part, section: SourcesSection, *, problems: Problems) -> Iterator[Document]:
    """Yields the documents of a part; a line that is none goes to ``problems``."""

    def document(record: dict[str, Any], offset: int) -> Document | None:
        return record_document(
            record, place=offset, text_field=section.text_field, id_field=section.id_field
        )

    return read_objects(part, section, document, problems=problems)


def read_objects(
    part: Part,
    section: SourcesSection,
    document: Callable[[dict[str, Any], int], Document | None],
    *,
    problems: Problems,
) -> Iterator[Document]:
    """Yields what ``document`` makes of each line's object and its byte offset.

    Raises:
        UserError: a line too long or not in UTF-8. What is wrong with one record goes to
            ``problems``, as ``{file}: line {number}: ...``.
    """
    for line in read_part(
        part, max_line_length=section.max_document_length, setting="max_document_length"
    ):
        if not line.text.strip():
            continue
        try:
            found = document(_parse(line.text), line.offset)
            if found is not None:
                check_lengths(found, section)
        except UserError as error:
            # Counting lines means reading the file again, so not for thousands of them.
            place = (
                f"line {line_number(part.path, line.offset)}"
                if problems.lists_more
                else f"byte {line.offset}"
            )
            problems.add(UserError(f"{part.path}: {place}: {error}"))
            continue
        if found is not None:
            yield found


def _parse(text: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"found no JSON ({error}), allowed: a JSON object per line") from None
    if not isinstance(record, dict):
        raise UserError(f"found a JSON {type(record).__name__}, allowed: a JSON object per line")
    return record
