"""Reads plain text and JSON lines, and turns the records of all formats into documents."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from bert_jax.errors import UserError, commas, did_you_mean
from bert_jax.files.read import parse_json_object
from bert_jax.pipelines.section import ExamplesSection, SourcesSection
from bert_jax.pipelines.sources.documents import (
    Document,
    blank_line_documents,
    file_documents,
    text_lines,
)
from bert_jax.pipelines.sources.files import FilePart, TextLine, cut_file, line_number, read_part
from bert_jax.pipelines.tally import Tally

R = TypeVar("R")


class PartReading(NamedTuple):
    """State of reading one part of a file."""

    part: FilePart
    section: SourcesSection  # settings of fields, lengths and errors
    tally: Tally  # counts and lists bad records

    def documents(
        self,
        records: Iterable[R],
        document: Callable[[R], Document | None],
        *,
        place: Callable[[R], str],
    ) -> Iterator[Document]:
        """Yields the document of each record with text.

        Args:
            records: records of the part.
            document: function that returns a record's document, or None if it has no text.
            place: function that names a record in messages: ``line 7``.

        If ``on_error`` is ``fail``, raises UserError for the first bad record. Otherwise skips bad
        records and lists them in the tally. A record over a length limit is bad.
        """
        for record in records:
            try:
                if (found := document(record)) is None:
                    continue
                _check_lengths(found, self.section)
            except UserError as error:
                named = error.located(f"{self.part.path}: {place(record)}")
                self.tally.skip(named, on_error=self.section.on_error)
                continue
            yield found

    def numbered_documents(
        self, records: Iterable[Mapping[str, Any]], *, first: int, place: Callable[[int], str]
    ) -> Iterator[Document]:
        """Yields documents as `documents` does. Records are numbered from ``first``."""
        return self.documents(
            enumerate(records, first),
            lambda numbered: self.document(numbered[1], numbered[0]),
            place=lambda numbered: place(numbered[0]),
        )

    def document(self, record: Mapping[str, Any], place: int) -> Document | None:
        r"""Returns a record's document, or None if its text is empty or null.

        ``{"text": "One.\n\nTwo.", "id": 7} -> Document(0, ["One.", "Two."], id="7")``

        ``place`` is the record's byte offset or index in the file. Raises UserError if a field that
        the settings name is missing or has the wrong type.
        """
        text_field, id_field = self.section.text_field, self.section.id_field
        text, given = _field(record, text_field), None
        if id_field is not None:
            found = _field(record, id_field)
            if isinstance(found, bool) or not isinstance(found, str | int) or found == "":
                raise UserError.wrong(
                    "record.id", f"{found!r:.60}", "a string or an integer", place=f'"{id_field}"'
                )
            given = str(found)
        if text is not None and not isinstance(text, str):
            raise UserError.wrong(
                "record.text", f"{text!r:.60}", "a string", place=f'"{text_field}"'
            )
        lines = text_lines(text or "")
        return Document(place, lines, given) if lines else None

    def line_place(self, line: TextLine) -> str:
        """Returns ``line 7``. If the list of problems is full, returns ``byte 123``.

        Counting lines reads the file again. For thousands of problems this would be too slow.
        """
        if self.tally.lists_more:
            return f"line {line_number(self.part.path, line.offset)}"
        return f"byte {line.offset}"


def named_fields(section: SourcesSection) -> dict[str, str]:
    """Returns the fields to read, by setting: ``{"text_field": "text"}``."""
    fields = {"text_field": section.text_field, "id_field": section.id_field}
    return {setting: name for setting, name in fields.items() if name is not None}


def check_fields(path: str, section: SourcesSection, *, allowed: Iterable[str], kind: str) -> None:
    """Raises UserError if a field to read is missing. ``kind`` is the noun in the message."""
    names = list(allowed)
    for setting, name in named_fields(section).items():
        if name not in names:
            raise UserError(
                "input.no_field",
                f'no {kind} "{name}" ({setting}), only {commas(names)}{did_you_mean(name, names)}',
                place=path,
            )


def _check_lengths(document: Document, section: SourcesSection) -> None:
    lengths = list(map(len, document.lines))
    for unit, found, setting in (
        ("paragraph", max(lengths), "max_line_length"),
        ("document", sum(lengths), "max_document_length"),
    ):
        if found >= getattr(section, setting):
            raise too_long(unit, found, section, setting)


def too_long(unit: str, found: int, section: SourcesSection, setting: str) -> UserError:
    """Returns the error for a unit of text, such as a page, that exceeds a length limit."""
    return UserError(
        "text.too_long",
        f"{unit} of {found:,} characters, allowed: {getattr(section, setting):,} ({setting})",
    )


def _field(record: Mapping[str, Any], name: str) -> Any:
    if name not in record:
        raise UserError(
            "record.no_field",
            f'found no field "{name}", only '
            f"{', '.join(record) or 'none':.200}{did_you_mean(name, record)}",
        )
    return record[name]


def cut_text(path: str, name: str, section: SourcesSection, part_bytes: int) -> list[FilePart]:
    """Cuts a file of plain text between its documents."""
    is_gap = None if _is_document(section) else lambda raw: not raw.strip()
    return cut_file(path, name, part_bytes=part_bytes, is_gap=is_gap)


def read_text(reading: PartReading) -> Iterator[Document]:
    """Yields the documents of a part of plain text.

    Bad bytes always end the part, because the start of the next document is then unknown.
    """
    lines = read_part(reading.part, max_line_length=reading.section.max_line_length)
    return (file_documents if _is_document(reading.section) else blank_line_documents)(lines)


def _is_document(section: SourcesSection) -> bool:
    """Returns whether each file of plain text is one document."""
    return isinstance(section, ExamplesSection) and section.documents == "file"


def cut_json(path: str, name: str, section: SourcesSection, part_bytes: int) -> list[FilePart]:
    """Cuts a file of JSON lines between any two lines."""
    del section
    return cut_file(path, name, part_bytes=part_bytes, is_gap=lambda raw: True)


def read_json(reading: PartReading) -> Iterator[Document]:
    """Yields the documents of a part of JSON lines."""
    return read_objects(reading, reading.document)


def read_objects(
    reading: PartReading, document: Callable[[dict[str, Any], int], Document | None]
) -> Iterator[Document]:
    """Yields ``document(object, byte offset)`` of each line.

    Raises UserError if a line is too long or not UTF-8.
    """
    limit = reading.section.max_document_length
    lines = read_part(reading.part, max_line_length=limit, setting="max_document_length")

    def parse(line: TextLine) -> Document | None:
        found = parse_json_object(line.text, allowed="a JSON object per line")
        return document(found, line.offset)

    held = (line for line in lines if line.text.strip())
    return reading.documents(held, parse, place=reading.line_place)
