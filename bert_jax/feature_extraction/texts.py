"""Reads texts from a file, and encodes them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from bert_jax.data.rows.collate import assemble
from bert_jax.data.tables import SUFFIXES as TABLES
from bert_jax.data.tables import TableRow, read_lines, read_table
from bert_jax.errors import UserError
from bert_jax.text import Tokenizer

SUFFIXES: Final = (".txt", *TABLES)


class TextColumns(NamedTuple):
    """The columns to read from a table. A .txt has no columns."""

    text: str | None = None
    pair: str | None = None
    label: str | None = None

    @property
    def asked(self) -> dict[str, str]:
        """The given columns, by command-line option."""
        options = {"--column": self.text, "--pair-column": self.pair, "--probe": self.label}
        return {option: name for option, name in options.items() if name is not None}


class InputText(NamedTuple):
    """A text or a pair of texts, with the number of its last line."""

    line: int
    text: str
    pair: str | None
    label: str | None


class EncodedText(NamedTuple):
    """``[CLS] A [SEP]`` or ``[CLS] A [SEP] B [SEP]``, unpadded."""

    source: InputText
    ids: list[int]
    second: int  # position where B begins; without B, the length
    cut: bool  # whether the text was truncated

    @property
    def text_positions(self) -> np.ndarray:
        """Positions of the pieces that are not special, int [pieces]."""
        special = {0, self.second - 1, len(self.ids) - 1}
        return np.asarray([at for at in range(len(self.ids)) if at not in special], np.intp)

    def word_starts(self, is_continuation: np.ndarray) -> np.ndarray:
        """Returns which of `text_positions` begin a word, bool [pieces].

        The first piece of a span always begins a word. `is_continuation` is that of the tokenizer,
        bool [vocabulary].
        """
        at = self.text_positions
        starts = ~is_continuation[np.asarray(self.ids)[at]]
        return starts | (at == 1) | (at == self.second)


def wrong_suffix(path: Path, allowed: Sequence[str]) -> UserError:
    """Returns the error for a file name with another suffix than the allowed ones."""
    found = path.suffix or "no suffix"
    return UserError(
        "features.suffix",
        "found {found}, allowed: {allowed}",
        place=path,
        found=found,
        allowed=list(allowed),
    )


def encode(
    texts: Sequence[InputText], tokenizer: Tokenizer, *, max_length: int
) -> list[EncodedText]:
    """Encodes texts. Truncates the longer text of a pair piece by piece until both fit."""
    special = tokenizer.special
    firsts = tokenizer.encode_batch([source.text for source in texts])
    seconds = tokenizer.encode_batch([source.pair or "" for source in texts])
    encoded = []
    for source, first, second in zip(texts, firsts, seconds, strict=True):
        pair = None if source.pair is None else second
        encoded.append(EncodedText(source, *assemble(first, pair, special, max_length=max_length)))
    return encoded


def read_texts(path: Path, columns: TextColumns) -> Iterator[InputText]:
    """Yields the texts of a file in order: the lines of a .txt, or the rows of a table.

    Raises UserError if the file or a column is missing, the suffix is unknown, the file is
    malformed, or a label is missing.
    """
    if path.suffix not in SUFFIXES:
        raise wrong_suffix(path, SUFFIXES)
    if path.suffix != ".txt":
        yield from (_text_of(row, columns) for row in read_table(path))
        return
    if columns.asked:
        option, name = next(iter(columns.asked.items()))
        raise UserError(
            "features.column_of_text",
            'found "{found}", but a .txt has no columns, allowed: with {allowed:or}',
            place=option,
            found=name,
            allowed=TABLES,
        )
    for number, line in read_lines(path):
        yield InputText(number, line, None, None)


def _text_of(row: TableRow, columns: TextColumns) -> InputText:
    row.require(columns.asked.items())
    column = columns.text or row.only_column("--column", but=columns.asked.values())
    label = None
    if columns.label is not None:
        found = row.values[columns.label]
        if found is None or found == "" or isinstance(found, dict | list):
            raise UserError(
                "label.type",
                "found {found!r}, allowed: a label",
                place=f'{row.place}: column "{columns.label}"',
                found=found,
            )
        label = str(found)
    pair = None if columns.pair is None else row.text(columns.pair)
    return InputText(row.line, row.text(column), pair, label)
