"""The rows of a file of labelled tokens, and the labels predicted for them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.tasks.family import NO_LABEL, Encoded, Record
from bert_jax.tasks.ragged import Ragged, encode_ragged
from bert_jax.tasks.tokens.conll import Sentence
from bert_jax.tasks.tokens.windows import Window, cut_windows
from bert_jax.text.tokenizer import SpecialIds, Tokenizer


class Words(NamedTuple):
    """Every word of a file in pieces, at least one each."""

    pieces: Ragged
    without_piece: int  # words of which the tokenizer leaves nothing: they are read as [UNK]
    cut: int  # words of more pieces than a row holds: they are read as far as it does


def encode_words(tokenizer: Tokenizer, sentences: Sequence[Sentence], *, room: int) -> Words:
    """Encodes each token by itself, as if it stood between spaces.

    A word of control characters has no piece; as [UNK] it keeps its place and gets a label like any
    other.

    Args:
        tokenizer: of the run.
        sentences: of one file.
        room: pieces of a row without [CLS] and [SEP].
    """
    tokens = itertools.chain.from_iterable(sentence.tokens for sentence in sentences)
    found = encode_ragged(tokenizer, tokens)
    lengths = np.diff(found.offsets)
    unknown = np.asarray([tokenizer.special.unk], np.int32)
    pieces = (found[index][:room] if found[index].size else unknown for index in range(len(found)))
    return Words(Ragged(pieces), int(np.sum(lengths == 0)), int(np.sum(lengths > room)))


class _Row(NamedTuple):
    sentence: int
    offset: int  # of the sentence's first word among those of the file
    window: Window


class TokenSplit:
    """A file of sentences; satisfies `Split`. A long sentence is several rows."""

    def __init__(
        self,
        sentences: Sequence[Sentence],
        pieces: Ragged,
        *,
        labels: Sequence[str],
        special: SpecialIds,
        room: int,
        stride: int,
    ) -> None:
        """Cuts the sentences into rows.

        Args:
            sentences: their labels, if they have any, are among `labels`.
            pieces: of every word of every sentence, 1 to `room` each.
            labels: of the model.
            special: of the tokenizer.
            room: pieces of a row without [CLS] and [SEP].
            stride: see `cut_windows`.
        """
        self._sentences = sentences
        self._pieces = pieces
        self._names = labels
        self._ids: Mapping[str, int] = {name: index for index, name in enumerate(labels)}
        self._special = special
        self._rows: list[_Row] = []
        lengths = np.diff(pieces.offsets)
        offset = 0
        for number, sentence in enumerate(sentences):
            end = offset + len(sentence.tokens)
            windows = cut_windows(lengths[offset:end], room=room, stride=stride)
            self._rows += [_Row(number, offset, window) for window in windows]
            offset = end

    @property
    def lengths(self) -> np.ndarray:
        """Pieces of each row: int32 [rows]."""
        bounds = np.asarray(
            [(row.offset + row.window.first, row.offset + row.window.end) for row in self._rows]
        )
        sizes = self._pieces.offsets[bounds[:, 1]] - self._pieces.offsets[bounds[:, 0]]
        return (sizes + 2).astype(np.int32)

    @property
    def examples(self) -> int:
        """How many sentences there are."""
        return len(self._sentences)

    def row(self, index: int) -> Encoded:
        """Returns a window; labels stand on the first pieces of the words that are read in it.

        A word that two windows hold is thus learned and scored once.
        """
        row = self._rows[index]
        window = row.window
        pieces = self._pieces.between(row.offset + window.first, row.offset + window.end)
        ids = [self._special.cls, *pieces.tolist(), self._special.sep]
        labels = self._sentences[row.sentence].labels
        targets = {}
        if labels is not None:
            target = np.full(len(ids), NO_LABEL, np.int32)
            read = labels[window.read : window.read_end]
            target[self._first_pieces(row)] = [self._ids[name] for name in read]
            targets = {"labels": target}
        return Encoded([ids], [len(ids)], targets)

    def collect(self) -> TokenCollector:
        """Returns what gathers the labels of the words."""
        return TokenCollector(self)

    def predicted(self, index: int, logits: np.ndarray) -> tuple[int, np.ndarray]:
        """Returns what a row says of the words that are read in it.

        Args:
            index: of the row.
            logits: [pieces, labels].

        Returns:
            The first of the words, among those of the file; the label ids of it and the following.
        """
        row = self._rows[index]
        return row.offset + row.window.read, np.argmax(logits[self._first_pieces(row)], axis=-1)

    def records(self, predicted: np.ndarray) -> list[Record]:
        """Returns a record for each sentence.

        Args:
            predicted: label ids of every word of the file.
        """
        names = [self._names[label] for label in predicted.tolist()]
        records: list[Record] = []
        offset = 0
        for number, sentence in enumerate(self._sentences):
            end = offset + len(sentence.tokens)
            labels = None if sentence.labels is None else list(sentence.labels)
            records.append(
                {
                    "id": number,
                    "tokens": list(sentence.tokens),
                    "label": labels,
                    "prediction": names[offset:end],
                }
            )
            offset = end
        return records

    @property
    def long_sentences(self) -> int:
        """How many sentences are more than one row."""
        rows = itertools.groupby(self._rows, key=lambda row: row.sentence)
        return sum(len(list(group)) > 1 for _, group in rows)

    @property
    def words(self) -> int:
        """How many words there are."""
        return len(self._pieces)

    def _first_pieces(self, row: _Row) -> np.ndarray:
        offsets = self._pieces.offsets[row.offset :]
        window = row.window
        # [CLS] comes before the pieces.
        return 1 + offsets[window.read : window.read_end] - offsets[window.first]


class TokenCollector:
    """Gathers one label for each word; satisfies `Collector`."""

    def __init__(self, split: TokenSplit) -> None:
        self._split = split
        self._labels = np.full(split.words, NO_LABEL, np.int32)

    def add(self, row: int, logits: np.ndarray) -> None:
        """Takes one row's logits: [pieces, labels], unpadded."""
        first, labels = self._split.predicted(row, logits)
        self._labels[first : first + len(labels)] = labels

    def records(self) -> list[Record]:
        """Returns a record for every sentence, in the order of the file.

        Raises:
            RuntimeError: a row was not added.
        """
        missing = int(np.sum(self._labels == NO_LABEL))
        if missing:
            raise RuntimeError(f"{missing} of {self._split.words} words have no prediction")
        return self._split.records(self._labels)
