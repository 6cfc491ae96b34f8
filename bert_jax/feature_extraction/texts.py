"""Reads texts from a file and tokenizes them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from bert_jax.data.rows.collate import assemble, fill_up
from bert_jax.data.tables import SUFFIXES as TABLES
from bert_jax.data.tables import TableRow, read_lines, read_table
from bert_jax.errors import UserError, commas, one_of
from bert_jax.model.text_head import TextSize
from bert_jax.text import Tokenizer
from bert_jax.text.word_starts import continuations

SUFFIXES: Final = (".txt", *TABLES)


class TextColumns(NamedTuple):
    """Columns to read from a table. All are None for a .txt file."""

    text: str | None = None
    pair: str | None = None

    @property
    def asked(self) -> dict[str, str]:
        """Columns that the user set, by command-line option."""
        options = {"--column": self.text, "--pair-column": self.pair}
        return {option: name for option, name in options.items() if name is not None}


class InputText(NamedTuple):
    """A text or a pair of texts. `line` is its last line number in the file."""

    line: int
    text: str
    pair: str | None = None


class EncodedText(NamedTuple):
    """``[CLS] A [SEP]`` or ``[CLS] A [SEP] B [SEP]``, unpadded."""

    source: InputText
    ids: list[int]
    second: int  # index of the first piece of B; `len(ids)` if there is no B
    cut: bool  # whether the text was truncated
    separators: int = 1  # number of separators between A and B

    @property
    def text_positions(self) -> np.ndarray:
        """Indices in `ids` of the pieces that are not special, int [pieces]."""
        between = range(self.second - self.separators, self.second)
        special = {0, len(self.ids) - 1, *between}
        return np.asarray([at for at in range(len(self.ids)) if at not in special], np.intp)

    def word_starts(self, tokenizer: Tokenizer) -> np.ndarray:
        """Returns whether each piece of `text_positions` begins a word, bool [pieces].

        The first piece of A or B always begins a word.
        """
        at = self.text_positions
        tables = tokenizer.is_continuation, tokenizer.ends_word
        starts = ~continuations(np.asarray(self.ids), *tables)[at]
        return starts | (at == 1) | (at == self.second)


def wrong_suffix(path: Path, allowed: Sequence[str]) -> UserError:
    """Returns the error for a file name with an unsupported suffix."""
    found = path.suffix or "no suffix"
    return UserError.wrong("features.suffix", found, commas(allowed), place=path)


def encode(
    texts: Sequence[InputText], tokenizer: Tokenizer, *, size: TextSize, prefix: str = ""
) -> list[EncodedText]:
    """Encodes texts. If a pair is too long, truncates the longer text piece by piece.

    `prefix` precedes every first text. Masks fill up single texts to `size.least`.
    """
    firsts = tokenizer.encode_batch([prefix + source.text for source in texts])
    seconds = tokenizer.encode_batch([source.pair or "" for source in texts])
    encoded = []
    for source, first, second in zip(texts, firsts, seconds, strict=True):
        pair = None if source.pair is None else second
        ids, second, cut = assemble(first, pair, tokenizer, max_length=size.most)
        if pair is None:
            ids = fill_up(ids, size.least, mask=tokenizer.special.mask, seen=size.seen)
            second = len(ids)
        separators = 0 if pair is None else tokenizer.separators
        encoded.append(EncodedText(source, ids, second, cut, separators))
    return encoded


def read_texts(path: Path, columns: TextColumns) -> Iterator[InputText]:
    """Yields the lines of a .txt file, or the texts of a table, in file order.

    Raises UserError if the file or a column is missing, or if the file is malformed or has an
    unsupported suffix.
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
            f'found "{name}", but a .txt has no columns, allowed: with {one_of(TABLES)}',
            place=option,
        )
    for number, line in read_lines(path):
        yield InputText(number, line)


def _text_of(row: TableRow, columns: TextColumns) -> InputText:
    row.require(columns.asked.items())
    column = columns.text or row.only_column("--column", but=columns.asked.values())
    pair = None if columns.pair is None else row.text(columns.pair)
    return InputText(row.line, row.text(column), pair)
