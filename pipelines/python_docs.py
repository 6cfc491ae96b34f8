"""Writes a corpus from text that every machine has: the installed Python's own documentation."""

import ast
import inspect
import itertools
import math
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from pydoc_data import topics
from typing import Final, TypeAlias, cast

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.text.sentences import split_sentences

MIN_SENTENCES: Final = 4
"""Minimum number of sentences per document. Shorter documents of a module or package are merged."""

# Directories of other packages and of tests, whose docstrings are often not prose.
_SKIPPED: Final = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "_bundled"}
)

# Markup of documentation text.
_BULLET: Final = re.compile(r"^(?:[*+•-]|\(?(?:\d{1,2}|[a-zA-Z])[.)])\s+(?=\S)")
_ROLE: Final = re.compile(r":[a-z][a-z:+-]*:(?=`)")
_LITERAL: Final = re.compile(r"``?([^`\n]+?)(?:``?|'(?!\w))")
_EMPHASIS: Final = re.compile(r"(?<![\w*])\*{1,2}(\w[^*\n]*?)\*{1,2}(?![\w*])")
_QUOTED_NAME: Final = re.compile(r"(?<!\w)\"([^\s\"]+)\"(?!\w)")
_REFERENCE: Final = re.compile(r"\s*\[(?:\d{1,2}|[A-Z]\w*\d+)\]_?(?!\w)")
_HYPHEN_BREAK: Final = re.compile(r"(?<=[a-z])- (?=[a-z])")

# Signs of code, signatures, tables, grammar rules and shell sessions.
_CODE: Final = re.compile(
    r"^#|::=|[=!<>+*/]=|->|=>|>>>|&&|\|\||\{|\}|\\|\$\w|__main__\b.*:|^\s*[|+]|[-=~^*]{4,}|\w\(.*\)\s*:$"
    r"|^(?:import|from|def|class|return|raise|print|async|await|@\w)\b[^.]*$"
    r"|(?<!\s)=(?!\s)|\s=\s|\s--\s.*\s--\s"
)
_WORD: Final = re.compile(r"(?<![\w.])[A-Za-z][a-z]*(?:['’-][a-z]+)*(?![\w(])")

_SENTENCE_END: Final = (".", "!", "?", ":", ";")
_MIN_WORDS: Final = {True: 4, False: 6}  # key: whether the paragraph ends with punctuation
_MIN_WORD_SHARE: Final = 0.65

_Node: TypeAlias = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def write_python_docs(
    directory: str | os.PathLike[str], *, max_bytes: int | None = None
) -> list[Path]:
    """Writes the prose of the installed Python's documentation as a corpus.

    ``write_python_docs("text") -> [Path("text/python_topics.txt"), …("text/python_library.txt")]``

    The text is `pydoc_data.topics` (chapters of the language reference) and the docstrings of the
    standard library, read with `ast`. The layout is google-research/bert's (README, "Pre-training
    with BERT"): a sentence per line, a blank line between documents. Each sentence occurs once, so
    no held-out document repeats the training text. One installation always gives the same bytes.
    The text ends before the first document that would exceed ``max_bytes``.

    Returns the files: chapters, then docstrings. Raises UserError if `max_bytes` is smaller than
    the first document.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    left = math.inf if max_bytes is None else max_bytes
    written: list[Path] = []
    for name, documents in (("topics", _chapters(seen)), ("library", _library(seen))):
        texts: list[str] = []
        for sentences in documents:
            text = "".join(f"{sentence}\n" for sentence in sentences)
            left -= len(text.encode()) + 1  # with the blank line after it
            if left < 0:
                break
            texts.append(text)
        if texts:
            written.append(folder / f"python_{name}.txt")
            write_whole(epath.Path(written[-1]), "\n".join(texts).encode())
        if left < 0:
            break
    if not written:
        raise UserError(
            "python_docs.max_bytes",
            f"found {max_bytes}, allowed: at least the size of the first document",
            place="max_bytes",
        )
    return written


def _chapters(seen: set[str]) -> Iterator[list[str]]:
    """Yields the chapters of the language reference without sentences in `seen`."""
    for name in sorted(topics.topics):
        sentences = _new_sentences([topics.topics[name]], seen)
        if len(sentences) >= MIN_SENTENCES:
            yield sentences


def _library(seen: set[str]) -> Iterator[list[str]]:
    """Yields the documents of modules and classes. Short documents of a package are merged."""
    root = Path(sysconfig.get_path("stdlib"))
    for _, modules in itertools.groupby(_source_files(root), key=lambda path: _name(path, root)[0]):
        brief: list[str] = []
        for sentences in (made for path in modules for made in _module_documents(path, seen)):
            if len(sentences) >= MIN_SENTENCES:
                yield sentences
            else:
                brief += sentences
        if len(brief) >= MIN_SENTENCES:
            yield brief


def _name(path: Path, root: Path) -> tuple[str, ...]:
    return path.relative_to(root).with_suffix("").parts


def _source_files(root: Path) -> list[Path]:
    files = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED and "-" not in name]
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    # Sort by path parts, so that "os-y.py" does not come between "os.py" and "os/x.py".
    return sorted(files, key=lambda path: _name(path, root))


def _module_documents(path: Path, seen: set[str]) -> Iterator[list[str]]:
    """Yields a document per class, then a document of the module's other docstrings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the library's docstrings have invalid escapes
            module = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # a template or a test's input, not a module
        return
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    outside = [node for node in module.body if not isinstance(node, ast.ClassDef)]
    own = _new_sentences(_docstrings(module, outside), seen)
    for node in classes:
        sentences = _new_sentences(_docstrings(node, node.body), seen)
        if len(sentences) >= MIN_SENTENCES:
            yield sentences
        else:
            own += sentences
    yield own


def _docstrings(node: _Node, body: Iterable[ast.stmt]) -> Iterator[str]:
    """Yields the docstrings of a node and of all definitions in `body`, at any depth."""
    defined = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    inner = (found for statement in body for found in ast.walk(statement))
    for each in itertools.chain([node], inner):
        if each is node or isinstance(each, defined):
            docstring = ast.get_docstring(cast(_Node, each))
            if docstring:
                yield docstring


def _new_sentences(texts: Iterable[str], seen: set[str]) -> list[str]:
    """Returns the new prose sentences of several texts, and adds them to `seen`."""
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

    ``"Return x.\n\n>>> f(1)\n2\n\nSee ``g`` for\nthe *rest* of it." ->
    ["See g for the rest of it."]``: the first paragraph is too short to count as prose.

    Code, doctest sessions, signatures, grammar, tables, headings and lists of names are dropped.
    The marks of emphasis, literals, roles, bullets and footnote references are removed.
    """
    paragraphs = []
    for block in _blocks(text):
        plain = _ROLE.sub("", block)
        for marked in (_LITERAL, _EMPHASIS, _QUOTED_NAME):
            plain = marked.sub(r"\1", plain)
        plain = _REFERENCE.sub("", plain).replace("::", ":").replace("`", "")
        paragraphs.append(_HYPHEN_BREAK.sub("-", " ".join(plain.split())))
    return list(filter(_is_prose, paragraphs))


def _blocks(text: str) -> Iterator[str]:
    """Yields each run of equally indented lines as one line. Doctest sessions are skipped."""
    lines: list[str] = []
    indent = 0
    in_session = False
    for line in [*inspect.cleandoc(text).splitlines(), ""]:
        stripped = line.strip()
        bullet = _BULLET.match(stripped)
        here = len(line) - len(line.lstrip())
        if lines and (not stripped or bullet is not None or here != indent):
            yield " ".join(lines)
            lines = []
        if not stripped:
            in_session = False
            continue
        # The output of a session ends at the next blank line.
        in_session = in_session or stripped.startswith((">>>", "... "))
        if in_session:
            continue
        if bullet is not None:
            stripped = stripped[bullet.end() :]
            here += bullet.end()
        if not lines:
            indent = here
        lines.append(stripped)


def _is_prose(paragraph: str) -> bool:
    if _CODE.search(paragraph):
        return False
    words = len(_WORD.findall(paragraph))
    # Many docstrings omit the full stop. A paragraph without one may be a heading or a line of a
    # table, so it needs more words.
    ended = paragraph.rstrip("\"')”’").endswith(_SENTENCE_END)
    return words >= max(_MIN_WORDS[ended], _MIN_WORD_SHARE * len(paragraph.split()))
