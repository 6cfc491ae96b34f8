"""Encodes a window of rows, and plans its batches."""

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from bert_jax.corpus.program import INPUT_IDS, LENGTHS, SECONDS
from bert_jax.corpus.results import Results, Tags
from bert_jax.data.dataset.schema import Example
from bert_jax.data.memory_table import MemoryTable
from bert_jax.data.rows.collate import special_tokens
from bert_jax.inference.batches import PlannedBatch
from bert_jax.task import Row
from bert_jax.tasks.batches import collate_inputs
from bert_jax.tasks.rows import RowTask
from bert_jax.text.tokenizer import Tokenizer


class EncodedWindow(abc.ABC):
    """The tokens of a window's rows.

    Attributes:
        lengths: number of tokens of each row, special tokens included, int [rows].
        cut: number of texts that were cut.
    """

    lengths: np.ndarray
    cut: int = 0

    @abc.abstractmethod
    def collate(self, batch: PlannedBatch) -> Row:
        """Returns the arrays of a batch."""

    def kept(self, output: np.ndarray) -> Any:
        """Returns what is kept of the output of a row until all rows have outputs."""
        return output

    @abc.abstractmethod
    def columns(self, outputs: list[Any]) -> list[pa.Array]:
        """Returns the columns of the results from what is kept of each row, in order."""


class TextWindow(EncodedWindow):
    """Texts, or pairs of texts, as ``[CLS] A [SEP]`` or ``[CLS] A [SEP] B [SEP]``."""

    def __init__(
        self,
        texts: Sequence[str] | Sequence[Example],
        pairs: Sequence[str] | None,
        *,
        tokenizer: Tokenizer,
        max_length: int,
        results: Results,
        prefix: str = "",
    ) -> None:
        """Encodes the texts, each after `prefix`, or takes the tokens of examples.

        If a pair is too long, its longer text loses its last tokens.
        """
        self._results, self._special = results, tokenizer.special
        self._dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32
        self._seconds: np.ndarray | None = None
        firsts, seconds = _tokens(texts, pairs, tokenizer, max_length=max_length, prefix=prefix)
        if seconds is None:
            room = max_length - special_tokens(tokenizer, pair=False)
            self.cut = sum(len(ids) > room for ids in firsts)
            self._ids = [ids[:room] for ids in firsts]
            self.lengths = np.array([len(ids) + 2 for ids in self._ids], np.int64)
            return
        encoded = [
            results.join(first.tolist(), second, tokenizer, max_length=max_length)
            for first, second in zip(firsts, seconds, strict=True)
        ]
        self.cut = sum(row.cut for row in encoded)
        self._ids = [np.array(row.ids[1:-1], np.int32) for row in encoded]
        self._seconds = np.array([row.second for row in encoded], np.int32)
        self.lengths = np.array([len(row.ids) for row in encoded], np.int64)

    def collate(self, batch: PlannedBatch) -> Row:
        """Returns the arrays of `device_batch`."""
        (size, length), rows = batch.shape, batch.rows
        ids = np.full((size, length), self._special.pad, self._dtype)
        lengths = np.zeros(size, np.int32)
        lengths[: len(rows)] = self.lengths[rows]
        for row, at in zip(ids, rows.tolist(), strict=False):
            found = self._ids[at]
            row[1 : len(found) + 1] = found
        ids[: len(rows), 0] = self._special.cls
        ids[np.arange(len(rows)), lengths[: len(rows)] - 1] = self._special.sep
        arrays = {INPUT_IDS: ids, LENGTHS: lengths}
        if self._seconds is not None:
            seconds = np.zeros(size, np.int32)
            seconds[: len(rows)] = self._seconds[rows]
            arrays[SECONDS] = seconds
        return arrays

    def columns(self, outputs: list[Any]) -> list[pa.Array]:
        """Returns the columns of the results."""
        special = self._special
        ids = ([special.cls, *inner.tolist(), special.sep] for inner in self._ids)
        return self._results.of_texts(outputs, ids)

    def kept(self, output: np.ndarray) -> Any:
        """Returns what is kept of the output of a row, see `Results.kept`."""
        return self._results.kept(output)


def _tokens(
    texts: Sequence[str] | Sequence[Example],
    pairs: Sequence[str] | None,
    tokenizer: Tokenizer,
    *,
    max_length: int,
    prefix: str,
) -> tuple[list[np.ndarray], list[list[int] | None] | None]:
    """Returns the tokens of first texts, and of second texts, without special tokens.

    If no text has a second one, returns at least `max_length` tokens of a longer text.
    """
    examples = [each for each in texts if isinstance(each, Example)]
    if examples:
        firsts = [each.input_ids[1 : each.first_length - 1] for each in examples]
        gap = tokenizer.separators - 1
        seconds = [
            each.input_ids[each.first_length + gap : -1].tolist() if each.has_pair else None
            for each in examples
        ]
        return firsts, seconds if any(each.has_pair for each in examples) else None
    known = [prefix + text for text in texts if isinstance(text, str)]
    if pairs is None:
        return tokenizer.encode_starts(known, max_length), None
    firsts = [np.array(ids, np.int32) for ids in tokenizer.encode_batch(known)]
    return firsts, [*tokenizer.encode_batch(pairs)]


class TagWindow(EncodedWindow):
    """Texts, or lists of words, for a head that tags words. A long text has several rows."""

    def __init__(self, texts: Sequence[Any], *, task: RowTask, results: Tags) -> None:
        """Encodes the texts."""
        rows = [{"tokens": words} for words in texts]
        self._split = task.split(MemoryTable.of(rows), {})
        self._pad, self._results = task.tokenizer.special.pad, results
        self.lengths = np.asarray(self._split.lengths, np.int64)

    def collate(self, batch: PlannedBatch) -> Row:
        """Returns the arrays of `collate_inputs`."""
        return collate_inputs(
            self._split,
            batch.rows,
            batch_size=batch.shape.rows,
            length=batch.shape.length,
            pad_id=self._pad,
        )

    def columns(self, outputs: list[np.ndarray]) -> list[pa.Array]:
        """Returns words and tags."""
        reduced = [
            self._split.reduce(at, found[: self.lengths[at]]) for at, found in enumerate(outputs)
        ]
        return self._results.of_records(self._split.records(reduced))
