"""What all readers of records share: a record as a document, bad ones reported with their place."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from bert_jax.errors import UserError, did_you_mean
from bert_jax.pipelines.section import SourcesSection
from bert_jax.pipelines.sources.documents import Document, Problems, text_lines
from bert_jax.pipelines.sources.files import FilePart, TextLine, line_number

R = TypeVar("R")


class PartReading(NamedTuple):
    """A part of a file that is being read."""

    part: FilePart
    section: SourcesSection  # the names of fields and the limits of length
    problems: Problems  # gets the `UserError` of each bad record, with the file and its place

    def documents(
        self,
        records: Iterable[R],
        document: Callable[[R], Document | None],
        *,
        place: Callable[[R], str],
    ) -> Iterator[Document]:
        """Yields the document of each record that has one and keeps within the limits of length.

        ``document`` returns ``None`` for a record without text; ``place`` says where a record is,
        for messages: ``line 7``.
        """
        for record in records:
            try:
                found = document(record)
                if found is None:
                    continue
                _check_lengths(found, self.section)
            except UserError as error:
                self.problems.add(UserError(f"{self.part.path}: {place(record)}: {error}"))
                continue
            yield found

    def numbered_documents(
        self, records: Iterable[Mapping[str, Any]], *, first: int, place: Callable[[int], str]
    ) -> Iterator[Document]:
        """Yields the same of records that are named by their number in the file, from ``first``."""
        return self.documents(
            enumerate(records, first),
            lambda numbered: self.document(numbered[1], numbered[0]),
            place=lambda numbered: place(numbered[0]),
        )

    def document(self, record: Mapping[str, Any], place: int) -> Document | None:
        """Returns a record's document by the fields that the settings name."""
        section = self.section
        return record_document(
            record, place=place, text_field=section.text_field, id_field=section.id_field
        )

    def line_place(self, line: TextLine) -> str:
        """Returns ``line 7``; once no more problems are listed ``byte 123``.

        Counting lines means reading the file again, so not for thousands of them.
        """
        if self.problems.lists_more:
            return f"line {line_number(self.part.path, line.offset)}"
        return f"byte {line.offset}"


def record_document(
    record: Mapping[str, Any],
    *,
    place: int,
    text_field: str,
    id_field: str | None,
    source: str | None = None,
) -> Document | None:
    r"""Returns a record's document, ``None`` if its text is empty or null.

    ``{"text": "One.\n\nTwo.", "id": 7}, id_field="id" -> Document(0, ["One.", "Two."], id="7")``

    ``place`` is the byte offset or number in the file, for a document without an id; the id's field
    holds a string or an integer. Raises UserError: a missing field or another type; the message
    begins with the field's name.
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


def named_fields(section: SourcesSection) -> dict[str, str]:
    """Returns the fields of a record that are read, by the setting that names each."""
    fields = {"text_field": section.text_field, "id_field": section.id_field}
    return {setting: name for setting, name in fields.items() if name is not None}


def check_fields(path: str, section: SourcesSection, *, allowed: Iterable[str], kind: str) -> None:
    """Makes sure that the fields to read exist; ``kind`` is what the format calls a field.

    Raises UserError: one does not.
    """
    names = list(allowed)
    for setting, name in named_fields(section).items():
        if name not in names:
            raise UserError(
                f'{path}: found no {kind} "{name}" ({setting}), allowed: '
                f"{', '.join(names)}{did_you_mean(name, names)}"
            )


def _check_lengths(document: Document, section: SourcesSection) -> None:
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
