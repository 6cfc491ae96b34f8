"""``python -m tests.messages`` writes the golden file of all error messages.

Reads key and message from the first two arguments of every error, which must be literals.
``python -m tests.messages FOLDER`` prints the problems in a folder instead.
"""

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from string import Formatter
from typing import Final, NamedTuple

from tests.project import ROOT

GOLDEN: Final = Path(__file__).parent / "golden" / "messages.txt"
_KEY: Final = re.compile(r"[a-z0-9_]+\.[a-z0-9_]+")
_CLASS_VARIABLE: Final = "kind"  # name of variables that hold a class of errors
SOURCES: Final = ("bert_jax", "pipelines")
WORDS: Final = 5
"""A test must not repeat this many words of a message in a row."""


class Message(NamedTuple):
    """One error in the source."""

    where: str  # file and line
    key: str
    text: str
    names: frozenset[str] | None  # names of the values; None if a ``**mapping`` is passed


def messages(*folders: str) -> list[Message]:
    """Returns the messages of all errors made in folders, ordered by key."""
    found = [each for path in _files(*(folders or SOURCES)) for each in _messages_of(path)]
    return sorted(found, key=lambda message: (message.key, message.text))


def golden_text() -> str:
    """Returns the golden file: each key and its message, with value names in braces."""
    shown = {
        (each.key, f"{{place}}: {each.text}" if "place" in (each.names or ()) else each.text)
        for each in messages()
        if each.key
    }
    return "".join(f"{key}\n    {text}\n" for key, text in sorted(shown))


def problems(*folders: str) -> Iterator[str]:
    """Yields problems of messages: no key, a key with two messages, or a missing value."""
    texts: dict[str, str] = {}
    for message in messages():
        mine = not folders or message.where.startswith(folders)
        if not message.key and not message.text and mine:
            yield f"{message.where}: an error without a literal key and message"
        if message.key and texts.setdefault(message.key, message.text) != message.text:
            yield f"{message.where}: {message.key} has another message elsewhere"
        needed = {name for _, name, _, _ in Formatter().parse(message.text) if name is not None}
        if message.names is not None and mine and (missing := needed - message.names):
            yield f"{message.where}: no value for {', '.join(sorted(missing))}"


def quotations() -> Iterator[str]:
    """Yields file and line of tests that repeat the words of a message."""
    known = {run for message in messages() for run in _runs(message.text)}
    for path in _files("tests"):
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for run in _runs(node.value.replace("\\", "")) & known:
                    yield f'{path.relative_to(ROOT)}:{node.lineno}: "{" ".join(run)}"'


def _runs(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return {
        run
        for run in zip(*(words[start:] for start in range(WORDS)), strict=False)
        if not any("{" in word for word in run)
    }


def _files(*folders: str) -> list[Path]:
    paths = [ROOT / folder for folder in folders]
    found = [[path] if path.is_file() else sorted(path.rglob("*.py")) for path in paths]
    return [path for group in found for path in group]


def _messages_of(path: Path) -> Iterator[Message]:
    for node in ast.walk(_tree(path)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        texts = [arg.value if isinstance(arg, ast.Constant) else None for arg in node.args]
        given = frozenset(word.arg for word in node.keywords if word.arg is not None)
        names = given if len(given) == len(node.keywords) else None
        where = f"{path.relative_to(ROOT)}:{node.lineno}"
        if name == "followed_by":
            if texts and isinstance(texts[0], str) and texts[0]:
                yield Message(where, "", texts[0], names)
            continue
        literals = [text for text in texts if isinstance(text, str)]
        makes_error = name in _kinds() or name == _CLASS_VARIABLE
        if makes_error and len(literals) > 1 and _KEY.fullmatch(literals[0]):
            yield Message(where, literals[0], literals[1], names)
        elif name in _kinds() and not any(ast.unparse(arg).endswith(".key") for arg in node.args):
            yield Message(where, "", "", names)


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def _kinds() -> set[str]:
    """Returns the names of all subclasses of `KeyedError`."""
    bases = {
        node.name: {ast.unparse(base) for base in node.bases}
        for path in _files(*SOURCES)
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ClassDef)
    }
    kinds = {"KeyedError"}
    while more := {name for name, above in bases.items() if above & kinds} - kinds:
        kinds |= more
    return kinds


if __name__ == "__main__":
    if sys.argv[1:]:
        print(*problems(*sys.argv[1:]), sep="\n")
    else:
        GOLDEN.write_text(golden_text(), encoding="utf-8")
