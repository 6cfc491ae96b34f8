"""Documents from the lines of text files, their sentences, and what is wrong with the input.

A new way to separate documents is one function and one line in :data:`FORMATS`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal, NamedTuple

from bert_jax.data.rng import digest128
from bert_jax.errors import UserError
from bert_jax.pipelines.sources.files import TextLine
from bert_jax.text.sentences import split_sentences

MOST_LISTED: Final = 100


class Document(NamedTuple):
    """A document as its file has it."""

    offset: int
    """Byte offset of its first line. With the file's name it is the document's id, see
    :func:`document_id`."""
    lines: list[str]  # stripped of surrounding white space; none is blank, there is at least one
    id: str | None = None
    """The id that the file gives it, unique in the file; ``None``: the offset is its id."""
    source: str | None = None  # the title or address in its file


class DocumentFormat(NamedTuple):
    """How files hold documents."""

    read: Callable[[Iterable[TextLine]], Iterator[Document]]
    """Documents from the lines of one part of a file."""
    is_gap: Callable[[bytes], bool] | None
    """True for a raw line after which a file may be cut, so that workers can share it; ``None``:
    files stay whole."""


def blank_line_documents(lines: Iterable[TextLine]) -> Iterator[Document]:
    """Yields the documents of a file that separates them by blank lines.

    The end of the file ends a document too. (google-research/bert continues a last document in the
    next file, unless a blank line ends it.)
    """
    offset, held = 0, list[str]()
    for line in lines:
        if text := line.text.strip():
            if not held:
                offset = line.offset
            held.append(text)
        elif held:
            yield Document(offset, held)
            held = []
    if held:
        yield Document(offset, held)


def file_documents(lines: Iterable[TextLine]) -> Iterator[Document]:
    """Yields the one document that a file is, if it has a line that is not blank."""
    held = [text for line in lines if (text := line.text.strip())]
    if held:
        yield Document(0, held)


FORMATS: Final[dict[str, DocumentFormat]] = {
    "blank_line": DocumentFormat(blank_line_documents, is_gap=lambda raw: not raw.strip()),
    "file": DocumentFormat(file_documents, is_gap=None),
}
"""``documents:`` what separates one document from the next."""


def document_sentences(document: Document, *, layout: str, language: str) -> list[str]:
    """Returns a document's sentences by what a line of it is: a sentence, or a paragraph of prose.

    ``sentences`` is google-research/bert's layout.
    """
    if layout == "sentences":
        return document.lines
    return [
        sentence for line in document.lines for sentence in split_sentences(line, language=language)
    ]


def document_id(name: str, offset: int, given: str | None = None) -> str:
    """Returns ``"books/emma.txt:20480"``: file name below the input root, byte of the first line.

    Or ``"wiki.jsonl#Q42"``, where the file gives the document an id. It does not depend on how
    files are cut into parts, on the machine or on where the input root is; it changes when the file
    is renamed or, without an id in the file, when text before the document changes. In formats of
    records ``offset`` is the record's number.
    """
    return f"{name}:{offset}" if given is None else f"{name}#{given}"


def text_lines(text: str) -> list[str]:
    r"""Returns the lines of a text that are not blank: ``" a\r\n\nb " -> ["a", "b"]``."""
    return [line for raw in text.replace("\r", "\n").split("\n") if (line := raw.strip())]


def is_validation(identity: str, *, fraction: float) -> bool:
    """Whether a document is held out.

    A function of its id alone, so that all seeds and tokenizers hold out the same documents.
    """
    return digest128(0, "validation", identity) < fraction * 2**128


def document_key(identity: str, *, seed: int) -> int:
    """Returns the 128-bit key that decides a document's place and its random stream."""
    return digest128(seed, "document", identity)


class Problems:
    """What is wrong with some input, in the order of discovery."""

    def __init__(self, on_error: Literal["fail", "skip"]) -> None:
        self._on_error = on_error
        self.count = 0
        """All of them."""
        self.listed: list[str] = []
        """The first ``MOST_LISTED``, a line each."""

    @property
    def lists_more(self) -> bool:
        """Whether the next one will be listed."""
        return len(self.listed) < MOST_LISTED

    def add(self, error: UserError) -> None:
        """Notes what was left out; UserError: ``error`` itself, where nothing may be left out."""
        if self._on_error == "fail":
            raise error
        self.count += 1
        if self.lists_more:
            self.listed.append(str(error))
