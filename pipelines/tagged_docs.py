"""Tagged sentences that every machine has: Python's documentation, by its own markup."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from pydoc_data import topics
from typing import Final, NamedTuple

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files import write_whole
from bert_jax.text.sentences import split_sentences
from pipelines.prose import prose_paragraphs

DEV_EVERY: Final = 10  # one sentence in so many is held out
MIN_SENTENCES: Final = DEV_EVERY

# Characters for private use, in the place of the marks while the text is made into sentences.
_MARKS: Final = {"CODE": ("\ue000", "\ue001"), "TERM": ("\ue002", "\ue003")}
_BEGINS: Final = {marks[0]: kind for kind, marks in _MARKS.items()}
_ENDS: Final = {marks[1]: kind for kind, marks in _MARKS.items()}

# What `pydoc_data.topics` has for a literal, by the version of Python, and for an emphasis.
_LITERAL: Final = re.compile(r'``([^`]+)``|"([^"]+)"')
_EMPHASIS: Final = re.compile(r"(?<![\w*])\*(\w[^*]*?)\*(?![\w*])")
# Without marks: a proposal, and a version of Python.
_PLAIN: Final = {
    "PEP": re.compile(r"\bPEP \d+\b"),
    "VERSION": re.compile(r"(?<=\bversion )\d+\.\d+(?:\.\d+)*|(?<=\bPython )\d+(?:\.\d+)*"),
}
_TOKEN: Final = re.compile(r"\w+(?:[-.’']\w+)*|[^\w\s]")
_MARK: Final = re.compile(f"[{''.join((*_BEGINS, *_ENDS))}]")


class TaggedDocs(NamedTuple):
    """The files written."""

    train: Path
    dev: Path


def write_tagged_docs(
    directory: str | os.PathLike[str], *, max_sentences: int | None = None
) -> TaggedDocs:
    """Writes a task of token classification: a token and its IOB2 label per line.

    ``The *name* of "dict.get()" in Python 3.8`` → The/O name/B-TERM of/O dict.get/B-CODE (/I-CODE
    )/I-CODE in/O Python/O 3.8/B-VERSION

    The text is that of `pydoc_data.topics`, the chapters of the language reference. Its own markup
    says what is CODE (a literal) and what is a TERM (emphasised: mostly parameters and parts of
    syntax); PEP and VERSION are found by their form. The marks are not in the tokens. Every
    sentence is there once; one in ten is held out. One installation gives the same bytes each time.

    Args:
        directory: made if it is not there.
        max_sentences: of both files together; None: all there are, more than 2,000.

    Returns:
        ``train.txt`` and ``dev.txt``.

    Raises:
        UserError: `max_sentences` is too few for both files.
    """
    if max_sentences is not None and max_sentences < MIN_SENTENCES:
        raise UserError(
            f"max_sentences: found {max_sentences}, allowed: {MIN_SENTENCES} or more, of which one "
            f"in {DEV_EVERY} is held out"
        )
    files = TaggedDocs(Path(directory) / "train.txt", Path(directory) / "dev.txt")
    sentences = list(itertools.islice(_tagged_sentences(), max_sentences))
    held_out = [index % DEV_EVERY == DEV_EVERY - 1 for index in range(len(sentences))]
    for path, wanted in ((files.train, False), (files.dev, True)):
        texts = [
            "".join(f"{token} {label}\n" for token, label in sentence)
            for sentence, out in zip(sentences, held_out, strict=True)
            if out is wanted
        ]
        write_whole(epath.Path(path), "\n".join(texts).encode())
    return files


def _tagged_sentences() -> Iterator[list[tuple[str, str]]]:
    """Yields the sentences of all chapters, each once; some chapters hold others."""
    seen: set[str] = set()
    for name in sorted(topics.topics):
        for paragraph in prose_paragraphs(mark_spans(topics.topics[name])):
            for sentence in split_sentences(paragraph, language="en"):
                tagged = tag_sentence(sentence)
                key = " ".join(token for token, _ in tagged).casefold()
                if tagged and key not in seen:
                    seen.add(key)
                    yield tagged


def mark_spans(text: str) -> str:
    """Returns a text with private-use characters around literals and emphasis, without their marks.

    Blocks with an odd number of quotes, or with two side by side, are left out: it is not known
    which of them are marks.

    Args:
        text: of `pydoc_data.topics`.
    """
    blocks = [
        _EMPHASIS.sub(_as_term, _LITERAL.sub(_as_code, block))
        for block in re.split(r"\n[ \t]*\n", text)
        if block.count('"') % 2 == 0 and '""' not in block
    ]
    return "\n\n".join(blocks)


def _as_code(match: re.Match[str]) -> str:
    begin, end = _MARKS["CODE"]
    return f"{begin}{match[1] or match[2]}{end}"


def _as_term(match: re.Match[str]) -> str:
    begin, end = _MARKS["TERM"]
    return f"{begin}{match[1]}{end}"


def tag_sentence(sentence: str) -> list[tuple[str, str]]:
    """Returns the tokens of a sentence with their labels; none if a span is cut or within another.

    Args:
        sentence: as `mark_spans` marks spans.
    """
    tagged: list[tuple[str, str]] = []
    kind = ""
    for part in re.split(f"({_MARK.pattern})", sentence):
        if part in _BEGINS:
            if kind:
                return []
            kind = _BEGINS[part]
        elif part in _ENDS:
            if kind != _ENDS[part]:
                return []
            kind = ""
        elif kind:
            tagged += _span(part, kind)
        else:
            tagged += _tag_plain(part)
    return [] if kind else tagged


def _span(text: str, kind: str) -> list[tuple[str, str]]:
    tokens = _TOKEN.findall(text)
    return [(token, f"{'I' if index else 'B'}-{kind}") for index, token in enumerate(tokens)]


def _tag_plain(text: str) -> list[tuple[str, str]]:
    found = sorted(
        (match.start(), match.end(), kind)
        for kind, pattern in _PLAIN.items()
        for match in pattern.finditer(text)
    )
    tagged: list[tuple[str, str]] = []
    done = 0
    for start, end, kind in found:
        tagged += [(token, "O") for token in _TOKEN.findall(text[done:start])]
        tagged += _span(text[start:end], kind)
        done = end
    return tagged + [(token, "O") for token in _TOKEN.findall(text[done:])]
