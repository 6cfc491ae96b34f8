"""Reads CoNLL files: one token per line, in columns, and a blank line between sentences."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

from bert_jax.data.memory_table import MemoryTable
from bert_jax.data.tables import read_lines
from bert_jax.errors import UserError
from bert_jax.tasks.family import no_rows

_DOCUMENT_START: Final = "-DOCSTART-"
# `str.split()` would also split at no-break spaces, which tokens may contain.
_WHITE_SPACE: Final = re.compile("[ \t]+")


class Sentence(NamedTuple):
    """The tokens of a sentence, with labels and line numbers."""

    tokens: list[str]
    labels: list[str] | None
    lines: list[int]  # line number of each token


class ConllFile(NamedTuple):
    """The sentences of a file."""

    path: Path
    sentences: list[Sentence]  # all labelled or all unlabelled
    stray_labels: int = 0  # number of labelled tokens in an unlabelled file

    @property
    def names(self) -> set[str]:
        """The labels in the file."""
        return {name for sentence in self.sentences for name in sentence.labels or ()}

    def first(self, names: Collection[str]) -> tuple[int, str]:
        """Returns (line number, label) of the first label in `names`."""
        return next(
            (line, name)
            for sentence in self.sentences
            for line, name in zip(sentence.lines, sentence.labels or (), strict=True)
            if name in names
        )


def read_conll(
    path: Path,
    *,
    labelled: bool,
    token: int = 0,
    label: int = -1,
    separator: str | None = None,
    comment: str | None = None,
) -> ConllFile:
    r"""Reads a file of columns: ``"EU B-ORG\nrejects O\n\nPeter B-PER\n"`` → two sentences.

    This is the format of the CoNLL shared tasks of 2000 to 2003. Lines that begin with
    ``-DOCSTART-`` separate documents and are skipped. If any token lacks a label, all labels are
    dropped.

    Args:
        path: path of the file.
        labelled: whether every token must have a label.
        token: index of the token's column. Negative indices count from the end.
        label: index of the label's column. Negative indices count from the end.
        separator: text between columns. By default, spaces and tabs.
        comment: prefix of lines to skip.

    Raises:
        UserError: The file is missing, is not UTF-8 or has no sentences. A line lacks a column, a
            token or a required label, or its number of columns differs from the line before.
    """
    blocks: list[list[tuple[str, str, int]]] = [[]]
    token_at, label_at, before, width = 0, 0, 0, 0
    for number, line in read_lines(path):
        if not line.strip(" \t") or line.startswith(_DOCUMENT_START):
            blocks.append([])
            continue
        if comment is not None and line.startswith(comment):
            continue
        place = f"{path}: line {number}"
        in_spaces = _WHITE_SPACE.split(line.strip(" \t"))
        fields = in_spaces if separator is None else line.split(separator)
        if not width:
            token_at = label_at = _column(place, fields, "token_column", token)
            if labelled or -len(fields) <= label < len(fields):
                label_at = _column(place, fields, "label_column", label)
        elif len(fields) != width:
            raise UserError(
                "tokens.columns",
                "found {found} columns, allowed: {allowed}, as in line {before}",
                place=place,
                found=len(fields),
                allowed=width,
                before=before,
            )
        before, width = number, len(fields)
        if labelled and label_at == token_at:
            raise UserError(
                "tokens.same_column",
                "token_column {token} and label_column {label} are the same column (of {columns})."
                " Set two different columns.",
                place=place,
                token=token,
                label=label,
                columns=width,
            )
        if not fields[token_at]:
            raise UserError(
                "tokens.empty_token",
                "found an empty token, allowed: a token, or an empty line between sentences",
                place=place,
            )
        name = "" if label_at == token_at else fields[label_at]
        if labelled and not name:
            raise UserError(
                "tokens.no_label", "found no label, allowed: one for every token", place=place
            )
        blocks[-1].append((fields[token_at], name, number))
    sentences = [Sentence(*map(list, zip(*block, strict=True))) for block in blocks if block]
    if not sentences:
        raise UserError(
            "tokens.no_sentences",
            "found no sentence, allowed: one token per line, in columns",
            place=path,
        )
    names = [name for sentence in sentences for name in sentence.labels or ()]
    if all(names):
        return ConllFile(path, sentences)
    sentences = [sentence._replace(labels=None) for sentence in sentences]
    return ConllFile(path, sentences, stray_labels=sum(map(bool, names)))


def _column(place: str, fields: list[str], key: str, number: int) -> int:
    """Converts a column to a non-negative index. Raises UserError if the line lacks the column."""
    if not -len(fields) <= number < len(fields):
        raise UserError(
            "tokens.column_missing",
            "found {found} columns, allowed: at least {least} ({setting}: {number})",
            place=place,
            found=len(fields),
            least=number + 1 if number >= 0 else -number,
            setting=key,
            number=number,
        )
    return number % len(fields)


def sentences_in_memory(table: MemoryTable) -> ConllFile:
    """Returns the sentences of rows: ``["EU rejects it", ("EU", "rejects")]`` has two.

    A row is a text with spaces between tokens, a list of tokens, or a dict with ``tokens`` and
    optionally ``labels``. Raises UserError for any other row, or if there are not as many labels as
    tokens.
    """
    sentences = []
    for number, row in enumerate(table.rows, start=1):
        found = row if not isinstance(row, dict) else row.get("tokens", row.get("text"))
        tokens = _WHITE_SPACE.split(found.strip()) if isinstance(found, str) else found
        labels = row.get("labels") if isinstance(row, dict) else None
        texts = isinstance(tokens, list | tuple) and all(isinstance(t, str) and t for t in tokens)
        if not tokens or not texts or (labels is not None and len(labels) != len(tokens)):
            raise UserError(
                "tokens.row",
                "found no tokens, or not as many labels as tokens, allowed: a text, a list of "
                "tokens, or a dict with tokens and labels",
                place=f"{table}: row {number}",
            )
        names = None if labels is None else [str(label) for label in labels]
        sentences.append(Sentence(list(tokens), names, [number] * len(tokens)))
    if not sentences:
        raise no_rows(table)
    if any(sentence.labels is None for sentence in sentences):
        sentences = [sentence._replace(labels=None) for sentence in sentences]
    return ConllFile(Path(str(table)), sentences)
