"""A record with fields, of whatever format, as a document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError, did_you_mean
from bert_jax.pipelines.section import SourcesSection
from bert_jax.pipelines.sources.documents import Document, text_lines


def record_document(
    record: Mapping[str, Any],
    *,
    place: int,
    text_field: str,
    id_field: str | None,
    source: str | None = None,
) -> Document | None:
    r"""Returns a record's document, ``None`` if it has no text or an empty one.

    ``{"text": "One.\n\nTwo.", "id": 7}, id_field="id" -> Document(0, ["One.", "Two."], id="7")``

    Args:
        record: its fields.
        place: byte offset or number in its file, for a document without an id.
        text_field: the field with the text; null is as good as empty.
        id_field: the field with the id, a string or an integer.
        source: its title or address.

    Raises:
        UserError: a field is missing or has something else in it; the message begins with the
            field's name, so that the caller can put the file's before it.
    """
    text = _field(record, text_field)
    given = None
    if id_field is not None:
        given = _field(record, id_field)
        if isinstance(given, bool) or not isinstance(given, str | int) or given == "":
            raise UserError(f'"{id_field}": found {given!r:.60}, allowed: a string or an integer')
        given = str(given)
    if text is not None and not isinstance(text, str):
        raise UserError(f'"{text_field}": found {text!r:.60}, allowed: a string')
    lines = text_lines(text or "")
    return Document(place, lines, given, source) if lines else None


def check_lengths(document: Document, section: SourcesSection) -> None:
    """Makes sure that a document and its lines keep within the limits of length.

    Raises:
        UserError: they do not; the message has no file's name yet.
    """
    longest = max(map(len, document.lines))
    if longest >= section.max_line_length:
        raise UserError(
            f"a paragraph has {longest:,} characters, allowed: fewer than "
            f"{section.max_line_length:,} (max_line_length)"
        )
    if (total := sum(map(len, document.lines))) >= section.max_document_length:
        raise UserError(
            f"a document has {total:,} characters, allowed: fewer than "
            f"{section.max_document_length:,} (max_document_length)"
        )


def _field(record: Mapping[str, Any], name: str) -> Any:
    try:
        return record[name]
    except KeyError:
        found = ", ".join(record) or "none"
        raise UserError(
            f'found no field "{name}", only {found:.200}{did_you_mean(name, record)}'
        ) from None
