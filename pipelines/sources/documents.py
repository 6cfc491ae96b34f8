"""Documents: their lines, sentences and ids, and how plain text files separate them."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bert_jax.data.rng import digest128
from bert_jax.pipelines.sources.files import TextLine
from bert_jax.text.sentences import split_sentences


class Document(NamedTuple):
    """A document of an input file."""

    offset: int  # byte offset of the first line, index of the record, or page id
    lines: list[str]  # at least one line; all are stripped
    id: str | None = None  # id in the file, unique there; None if the file has no ids


def blank_line_documents(lines: Iterable[TextLine]) -> Iterator[Document]:
    """Yields the documents of a file that separates them by blank lines.

    A document also ends with its file; google-research/bert continues it in the next file.
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
    """Yields a whole file as one document. A blank file has no document."""
    if held := [text for line in lines if (text := line.text.strip())]:
        yield Document(0, held)


def document_sentences(document: Document, *, layout: str, language: str) -> list[str]:
    """Returns a document's sentences. If the layout is ``prose``, splits each line."""
    if layout == "sentences":
        return document.lines
    return [s for line in document.lines for s in split_sentences(line, language=language)]


def document_id(name: str, offset: int, given: str | None = None) -> str:
    """Returns ``"books/emma.txt:20480"``: name below the input root, offset of the first line.

    If the file gives the document an id, the result is ``"wiki.jsonl#Q42"``. The result does not
    depend on the division of the file into parts, the machine, or the path of the input root. It
    changes if the file is renamed. Without an id in the file, it also changes if the length of the
    text before the document changes.
    """
    return f"{name}:{offset}" if given is None else f"{name}#{given}"


def text_lines(text: str) -> list[str]:
    r"""Returns the non-blank lines of a text, stripped: ``" a\r\n\nb " -> ["a", "b"]``."""
    return [line for raw in text.replace("\r", "\n").split("\n") if (line := raw.strip())]


def document_key(identity: str, *, seed: int) -> int:
    """Returns the 128-bit key that decides a document's position and its random stream."""
    return digest128(seed, "document", identity)
