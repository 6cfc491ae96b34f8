"""Documents: their lines, sentences and ids, and the text files that hold them."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bert_jax.data.rng import digest128
from bert_jax.pipelines.sources.files import TextLine
from bert_jax.text.sentences import split_sentences


class Document(NamedTuple):
    """A document as its file has it."""

    offset: int  # byte offset of its first line, or number of its record; see :func:`document_id`
    lines: list[str]  # at least one, all without surrounding white space
    id: str | None = None  # the id in the file, unique there; None: the offset is its id


def blank_line_documents(lines: Iterable[TextLine]) -> Iterator[Document]:
    """Yields the documents of a file that separates them by blank lines.

    The end of the file ends a document too; google-research/bert continues it in the next file.
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
    """Yields a whole file as one document, if it has a line that is not blank."""
    if held := [text for line in lines if (text := line.text.strip())]:
        yield Document(0, held)


def document_sentences(document: Document, *, layout: str, language: str) -> list[str]:
    """Returns a document's sentences: its lines, or the sentences of its lines of ``prose``."""
    if layout == "sentences":
        return document.lines
    return [s for line in document.lines for s in split_sentences(line, language=language)]


def document_id(name: str, offset: int, given: str | None = None) -> str:
    """Returns ``"books/emma.txt:20480"``: file name below the input root, byte of the first line.

    Or ``"wiki.jsonl#Q42"``, if the file gives the document an id. The result does not depend on the
    cuts of the file, on the machine or on the place of the input root. It changes if the file is
    renamed or, without an id in the file, if text before the document changes.
    """
    return f"{name}:{offset}" if given is None else f"{name}#{given}"


def text_lines(text: str) -> list[str]:
    r"""Returns the lines of a text that are not blank: ``" a\r\n\nb " -> ["a", "b"]``."""
    return [line for raw in text.replace("\r", "\n").split("\n") if (line := raw.strip())]


def is_validation(identity: str, *, fraction: float) -> bool:
    """Whether a document is held out: a function of its id, the same for all seeds."""
    return digest128(0, "validation", identity) < fraction * 2**128


def document_key(identity: str, *, seed: int) -> int:
    """Returns the 128-bit key that decides a document's place and its random stream."""
    return digest128(seed, "document", identity)
