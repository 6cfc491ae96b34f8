"""A corpus that every machine has: the English in the installed Python's own documentation."""

from __future__ import annotations

import ast
import itertools
import os
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from pydoc_data import topics
from typing import Final, NamedTuple, TypeAlias

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.pipelines.python_docs.prose import prose_paragraphs
from bert_jax.text.sentences import split_sentences

MIN_SENTENCES: Final = 4
"""A document of fewer joins its module's or package's: two spans need some to choose from."""

# Others' packages, and tests: their strings are made to be parsed, not read.
_SKIPPED: Final = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "_bundled"}
)

_Node: TypeAlias = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class _Document(NamedTuple):
    """The documentation of one object: ``("json.decoder.JSONDecoder", ["Simple JSON …"])``."""

    name: str
    sentences: list[str]


def write_python_docs(
    directory: str | os.PathLike[str], *, max_bytes: int | None = None
) -> list[Path]:
    """Writes the English of the installed Python's documentation as a corpus.

    ``write_python_docs("text") -> [Path("text/python_topics.txt"), …("text/python_library.txt")]``

    The text is `pydoc_data.topics` (chapters of the language reference) and the docstrings of the
    standard library, read with `ast` and never imported, in the layout of google-research/bert
    (README, "Pre-training with BERT"): a sentence per line, a blank line between documents. A
    sentence is kept once, so that no held-out document repeats one trained on. One installation
    gives the same bytes each time. The text ends before the document with which it would exceed
    ``max_bytes``; None: it is all there is. Returns the files written: the chapters, then the
    docstrings.

    Raises:
        UserError: `max_bytes` is less than the first document.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    left = max_bytes
    written: list[Path] = []
    for name, documents in (("topics", _chapters(seen)), ("library", _library(seen))):
        texts: list[str] = []
        for document in documents:
            text = "".join(f"{sentence}\n" for sentence in document.sentences)
            if left is not None:
                left -= len(text.encode()) + 1  # with the blank line after it
                if left < 0:
                    break
            texts.append(text)
        if texts:
            written.append(folder / f"python_{name}.txt")
            write_whole(epath.Path(written[-1]), "\n".join(texts).encode())
        if left is not None and left < 0:
            break
    if not written:
        raise UserError(f"max_bytes: found {max_bytes}, less than the first document has")
    return written


def _chapters(seen: set[str]) -> Iterator[_Document]:
    """Yields the language reference's chapters. Some hold others, which then are not repeated."""
    for name in sorted(topics.topics):
        document = _Document(name, _new_sentences([topics.topics[name]], seen))
        if len(document.sentences) >= MIN_SENTENCES:
            yield document


def _library(seen: set[str]) -> Iterator[_Document]:
    """Yields the standard library's documents, package by package."""
    root = Path(sysconfig.get_path("stdlib"))
    modules = (_module_documents(path, root, seen) for path in _source_files(root))
    # A package's files are adjacent in the sorted order; the documents of its modules that are too
    # short are joined to one of the package.
    packages = itertools.groupby(
        itertools.chain.from_iterable(modules), key=lambda document: document.name.split(".")[0]
    )
    for package, documents in packages:
        brief: list[str] = []
        for document in documents:
            if len(document.sentences) >= MIN_SENTENCES:
                yield document
            else:
                brief += document.sentences
        if len(brief) >= MIN_SENTENCES:
            yield _Document(package, brief)


def _source_files(root: Path) -> list[Path]:
    files = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED and "-" not in name]
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    # By parts, not as text: "os/x.py" and "os.py" must not have "os-y.py" between them.
    return sorted(files, key=lambda path: path.relative_to(root).with_suffix("").parts)


def _module_documents(path: Path, root: Path, seen: set[str]) -> Iterator[_Document]:
    """Yields a module's own document (its docstring and its functions'), then its classes'."""
    name = ".".join(path.relative_to(root).with_suffix("").parts)
    try:
        with warnings.catch_warnings():
            # An invalid escape in somebody's docstring is no concern of ours, even where
            # warnings are errors.
            warnings.simplefilter("ignore")
            module = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # a template or a test's input, not a module
        return
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    outside = [node for node in module.body if not isinstance(node, ast.ClassDef)]
    own = _new_sentences(_docstrings(module, outside), seen)
    for node in classes:
        sentences = _new_sentences(_docstrings(node, node.body), seen)
        if len(sentences) >= MIN_SENTENCES:
            yield _Document(f"{name}.{node.name}", sentences)
        else:
            own += sentences
    yield _Document(name, own)


def _docstrings(node: _Node, body: Iterable[ast.stmt]) -> Iterator[str]:
    """Yields the docstring of a node, then those of what is defined in `body`, at any depth."""
    docstring = ast.get_docstring(node)
    if docstring:
        yield docstring
    for statement in body:
        for inner in ast.walk(statement):
            if isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(inner)
                if docstring:
                    yield docstring


def _new_sentences(texts: Iterable[str], seen: set[str]) -> list[str]:
    """Returns the sentences of several texts' prose that are not in `seen`, and adds them to it."""
    new: list[str] = []
    for text in texts:
        for paragraph in prose_paragraphs(text):
            for sentence in split_sentences(paragraph, language="en"):
                key = sentence.casefold()
                if " " in key and key not in seen:
                    seen.add(key)
                    new.append(sentence)
    return new
