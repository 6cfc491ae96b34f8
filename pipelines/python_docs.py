"""A corpus that every machine has: the English in the installed Python's own documentation."""

import ast
import inspect
import itertools
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from pydoc_data import topics
from typing import Final, NamedTuple, TypeAlias

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.text.sentences import split_sentences

MIN_SENTENCES: Final = 4
"""A document of fewer joins its module's or package's: two spans need some to choose from."""

# Others' packages, and tests: their strings are made to be parsed, not read.
_SKIPPED: Final = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "_bundled"}
)

# Marked-up documentation text: what stays without its marks.
_BULLET: Final = re.compile(r"^(?:[*+•-]|\(?(?:\d{1,2}|[a-zA-Z])[.)])\s+(?=\S)")
_ROLE: Final = re.compile(r":[a-z][a-z:+-]*:(?=`)")
_LITERAL: Final = re.compile(r"``?([^`\n]+?)(?:``?|'(?!\w))")
_EMPHASIS: Final = re.compile(r"(?<![\w*])\*{1,2}(\w[^*\n]*?)\*{1,2}(?![\w*])")
_QUOTED_NAME: Final = re.compile(r"(?<!\w)\"([^\s\"]+)\"(?!\w)")
_REFERENCE: Final = re.compile(r"\s*\[(?:\d{1,2}|[A-Z]\w*\d+)\]_?(?!\w)")
_HYPHEN_BREAK: Final = re.compile(r"(?<=[a-z])- (?=[a-z])")

# What only code, signatures, tables, grammar rules and shell sessions hold.
_CODE: Final = re.compile(
    r"^#|::=|[=!<>+*/]=|->|=>|>>>|&&|\|\||\{|\}|\\|\$\w|__main__\b.*:|^\s*[|+]|[-=~^*]{4,}|\w\(.*\)\s*:$"
    r"|^(?:import|from|def|class|return|raise|print|async|await|@\w)\b[^.]*$"
    r"|(?<!\s)=(?!\s)|\s=\s|\s--\s.*\s--\s"
)
_WORD: Final = re.compile(r"(?<![\w.])[A-Za-z][a-z]*(?:['’-][a-z]+)*(?![\w(])")

_MIN_WORDS: Final = 4
_MIN_WORDS_UNENDED: Final = 6
_MIN_WORD_SHARE: Final = 0.65
_SENTENCE_END: Final = (".", "!", "?", ":", ";")

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
    docstrings. Raises UserError: `max_bytes` is less than the first document.
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


def prose_paragraphs(text: str) -> list[str]:
    r"""Returns the paragraphs of English in a docstring or help text, each on one line.

    ``"Return *x*.\n\n>>> f(1)\n2\n\nSee ``g`` for\nthe rest of it." ->
    ["Return x.", "See g for the rest of it."]`` but for the first, which is too short to keep.

    Dropped: code, doctest sessions, signatures, grammar, tables, headings, and lists of names.
    Kept without their marks: emphasis, literals, roles, bullets, footnote references.
    """
    paragraphs = (_plain(block) for block in _blocks(text))
    return [paragraph for paragraph in paragraphs if _is_prose(paragraph)]


def _blocks(text: str) -> Iterator[str]:
    """Yields runs of lines of one indentation, as one line each; doctest sessions are left out."""
    lines: list[str] = []
    indent = 0
    in_session = False
    for line in [*inspect.cleandoc(text).splitlines(), ""]:
        stripped = line.strip()
        bullet = _BULLET.match(stripped)
        here = len(line) - len(line.lstrip())
        ends = not stripped or bullet is not None or here != indent
        if lines and ends:
            yield " ".join(lines)
            lines = []
        if not stripped:
            in_session = False
            continue
        # A session's output follows its prompt, up to the next blank line.
        in_session = in_session or stripped.startswith((">>>", "... "))
        if in_session:
            continue
        if bullet is not None:
            stripped = stripped[bullet.end() :]
            here += bullet.end()
        if not lines:
            indent = here
        lines.append(stripped)
    if lines:
        yield " ".join(lines)


def _plain(block: str) -> str:
    block = _ROLE.sub("", block)
    block = _LITERAL.sub(r"\1", block)
    block = _EMPHASIS.sub(r"\1", block)
    block = _QUOTED_NAME.sub(r"\1", block)
    block = _REFERENCE.sub("", block)
    block = block.replace("::", ":").replace("`", "")
    return _HYPHEN_BREAK.sub("-", " ".join(block.split()))


def _is_prose(paragraph: str) -> bool:
    if _CODE.search(paragraph):
        return False
    words = len(_WORD.findall(paragraph))
    # Many docstrings leave out their full stop; without it, a heading or a table's line must not
    # pass for a sentence.
    ended = paragraph.rstrip("\"')”’").endswith(_SENTENCE_END)
    enough = _MIN_WORDS if ended else _MIN_WORDS_UNENDED
    return words >= enough and words >= _MIN_WORD_SHARE * len(paragraph.split())
