"""Files of columns: a token per line, a blank line between sentences."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

from bert_jax.data.memory_table import MemoryTable
from bert_jax.data.tables import read_lines
from bert_jax.errors import UserError, counted

_DOCUMENT_START: Final = "-DOCSTART-"
# Not `str.split()`: a token may contain a no-break space.
_WHITE_SPACE: Final = re.compile("[ \t]+")


class ConllColumns(NamedTuple):
    """The columns of a line; negative numbers count from its end."""

    token: int = 0
    label: int = -1
    separator: str | None = None  # None: any run of spaces and tabs
    comment: str | None = None  # lines that begin with it are skipped


class Sentence(NamedTuple):
    """``EU B-ORG`` / ``rejects O`` in lines 3 and 4: its tokens, their labels, their lines."""

    tokens: list[str]
    labels: list[str] | None
    lines: list[int]


class ConllFile(NamedTuple):
    """What a file holds."""

    path: Path
    sentences: list[Sentence]  # all of them labelled, or none
    stray_labels: int = 0  # tokens of an unlabelled file that have a label nevertheless

    @property
    def names(self) -> set[str]:
        """The labels that occur."""
        return {name for sentence in self.sentences for name in sentence.labels or ()}

    def first(self, names: Collection[str]) -> tuple[int, str]:
        """Returns the first label that is among some names, with its line before it."""
        return next(
            (line, name)
            for sentence in self.sentences
            for line, name in zip(sentence.lines, sentence.labels or (), strict=True)
            if name in names
        )


class _Line(NamedTuple):
    number: int
    fields: list[str]

    @property
    def width(self) -> str:
        return counted(len(self.fields), "column")


def read_conll(path: Path, columns: ConllColumns, *, labelled: bool) -> ConllFile:
    r"""Reads a file of columns: ``"EU B-ORG\nrejects O\n\nPeter B-PER\n"`` → two sentences.

    The layout of the CoNLL shared tasks of 2000 to 2003: lines that begin with ``-DOCSTART-``
    divide documents and are skipped. A file is labelled if every token has a label; a file to be
    `labelled` must be. Raises UserError: no such file, not UTF-8, no sentence; a line with another
    number of columns than the one before, without the token's or a required label's column, with an
    empty token or without a required label.
    """
    blocks = _read_blocks(path, columns)
    if not blocks:
        raise UserError(f"{path}: found no sentence, allowed: a token per line, in columns")
    first = blocks[0][0]
    token = _column(path, first, "token_column", columns.token, required=True)
    label = _column(path, first, "label_column", columns.label, required=labelled)
    if label == token and labelled:
        raise UserError(
            f"{path}: line {first.number}: found token_column {columns.token} and label_column "
            f"{columns.label} in {first.width}, allowed: two different ones"
        )
    assert token is not None
    sentences = [_sentence(path, block, token) for block in blocks]
    if label is None or label == token:
        return ConllFile(path, sentences)
    found = [[line.fields[label] for line in block] for block in blocks]
    empty = [line.number for block in blocks for line in block if not line.fields[label]]
    if empty and labelled:
        raise UserError(f"{path}: line {empty[0]}: found no label, allowed: one for every token")
    if empty:
        return ConllFile(path, sentences, stray_labels=sum(map(len, found)) - len(empty))
    pairs = zip(sentences, found, strict=True)
    return ConllFile(path, [sentence._replace(labels=names) for sentence, names in pairs])


def sentences_in_memory(table: MemoryTable) -> ConllFile:
    """Returns sentences of a table: each a text with spaces between its tokens, or its tokens.

    ``["EU rejects it", ("EU", "rejects")]``, or dicts with the column ``tokens``, perhaps also
    ``labels``. Raises UserError: a row that is no sentence; labels of some tokens only.
    """
    sentences = []
    for number, row in enumerate(table.rows, start=1):
        found = row if not isinstance(row, dict) else row.get("tokens", row.get("text"))
        tokens = _WHITE_SPACE.split(found.strip()) if isinstance(found, str) else found
        labels = row.get("labels") if isinstance(row, dict) else None
        texts = isinstance(tokens, list | tuple) and all(isinstance(t, str) and t for t in tokens)
        if not tokens or not texts or (labels is not None and len(labels) != len(tokens)):
            raise UserError(
                f"{table}: row {number}: found no tokens (and as many labels, if any), allowed: a "
                f"text, a list of tokens, or a dict with tokens"
            )
        names = None if labels is None else [str(label) for label in labels]
        sentences.append(Sentence(list(tokens), names, [number] * len(tokens)))
    if not sentences:
        raise UserError(f"{table}: found no sentence, allowed: one or more")
    if any(sentence.labels is None for sentence in sentences):
        sentences = [sentence._replace(labels=None) for sentence in sentences]
    return ConllFile(Path(str(table)), sentences)


def _read_blocks(path: Path, columns: ConllColumns) -> list[list[_Line]]:
    blocks: list[list[_Line]] = [[]]
    before: _Line | None = None
    for number, line in read_lines(path):
        if not line.strip(" \t") or line.startswith(_DOCUMENT_START):
            if blocks[-1]:
                blocks.append([])
            continue
        if columns.comment is not None and line.startswith(columns.comment):
            continue
        if columns.separator is None:
            fields = _WHITE_SPACE.split(line.strip(" \t"))
        else:
            fields = line.split(columns.separator)
        found = _Line(number, fields)
        if before is not None and len(before.fields) != len(fields):
            raise UserError(
                f"{path}: line {number}: found {found.width}, allowed: {len(before.fields)}, "
                f"as in line {before.number}"
            )
        blocks[-1].append(found)
        before = found
    return blocks if blocks[-1] else blocks[:-1]


def _sentence(path: Path, block: list[_Line], token: int) -> Sentence:
    for line in block:
        if not line.fields[token]:
            raise UserError(
                f"{path}: line {line.number}: found an empty token, allowed: a token, or an empty "
                "line between sentences"
            )
    return Sentence([line.fields[token] for line in block], None, [line.number for line in block])


def _column(path: Path, line: _Line, key: str, number: int, *, required: bool) -> int | None:
    """Returns a column's index in a line; None if the line has fewer columns."""
    width = len(line.fields)
    index = number if number >= 0 else width + number
    if 0 <= index < width:
        return index
    if not required:
        return None
    needed = number + 1 if number >= 0 else -number
    raise UserError(
        f"{path}: line {line.number}: found {line.width}, allowed: at least {needed} "
        f"({key}: {number})"
    )
