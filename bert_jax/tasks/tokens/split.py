"""The rows of a file of labelled tokens, and the labels predicted for them."""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.rows.collate import Ragged, encode_ragged
from bert_jax.tasks.family import NO_LABEL, Collector, Encoded, Record, content_hash
from bert_jax.tasks.tokens.conll import Sentence
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.vocabulary import SpecialIds


class EncodedWords(NamedTuple):
    """Every word of a file in pieces, at least one each."""

    pieces: Ragged
    without_piece: int  # words of which the tokenizer leaves nothing: they are read as [UNK]
    cut: int  # words of more pieces than a row holds: they are read as far as it does


def encode_words(tokenizer: Tokenizer, sentences: Sequence[Sentence], *, room: int) -> EncodedWords:
    """Encodes each token by itself, as between spaces.

    A word of control characters has no piece; it is encoded as [UNK] and labelled like any other.
    One of more pieces than the room of a row, without [CLS] and [SEP], is cut.
    """
    tokens = itertools.chain.from_iterable(sentence.tokens for sentence in sentences)
    found = encode_ragged(tokenizer, tokens)
    lengths = np.diff(found.offsets)
    unknown = np.asarray([tokenizer.special.unk], np.int32)
    pieces = (found[index][:room] if found[index].size else unknown for index in range(len(found)))
    return EncodedWords(Ragged(pieces), int(np.sum(lengths == 0)), int(np.sum(lengths > room)))


class Window(NamedTuple):
    """Words `first` to `end` of a sentence, of which `read` to `read_end` are predicted here."""

    first: int
    end: int
    read: int
    read_end: int


def cut_windows(lengths: np.ndarray, *, room: int, stride: int) -> list[Window]:
    """Cuts a sentence between words.

    Ten words of one piece with room 6 and stride 4 → words 0–6 and 4–10, of which 0–5 and 5–10 are
    predicted there. Every word is predicted in one window: where the fewer of the pieces before and
    after it are most (the maximum context of `run_squad.py` in google-research/bert), in the
    earlier one in a draw. The words have 1 to `room` pieces, int [words]; `stride` is from the
    beginning of a window to that of the next, 1 to `room` pieces, other where a word ends
    otherwise, or the next word is long.
    """
    ends = np.cumsum(lengths)
    starts = ends - lengths
    bounds: list[tuple[int, int]] = []
    first = 0
    while True:
        end = int(np.searchsorted(ends, starts[first] + room, side="right"))
        bounds.append((first, end))
        if end == len(lengths):
            break
        # The next one goes as far as it must to hold the word at `end`, and leaves out none.
        following = max(starts[first] + stride, ends[end] - room)
        first = min(int(np.searchsorted(starts, following)), end)
    windows = []
    read = 0
    for index, (first, end) in enumerate(bounds):
        read_end = end
        if index + 1 < len(bounds):
            # What stands in both is read here while as many pieces follow it here as precede it in
            # the next window; that the other sides are longer then follows.
            shared = np.arange(max(bounds[index + 1][0], read), end)
            after = ends[end - 1] - ends[shared]
            before = starts[shared] - starts[bounds[index + 1][0]]
            read_end = end - int(np.sum(after < before))
        windows.append(Window(first, end, read, read_end))
        read = read_end
    return windows


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

        Labels are among those of the model; every word of every sentence has 1 to `room` pieces,
        which is what a row holds beside [CLS] and [SEP]. `stride` is as of `cut_windows`.
        """
        self._sentences = sentences
        self.examples, self.fingerprint = len(sentences), content_hash(sentences)
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
        bounds = np.asarray(
            [(row.offset + row.window.first, row.offset + row.window.end) for row in self._rows]
        )
        sizes = pieces.offsets[bounds[:, 1]] - pieces.offsets[bounds[:, 0]]
        self.lengths: np.ndarray = (sizes + 2).astype(np.int32)

    def row(self, index: int) -> Encoded:
        """Returns a window, with labels at the first pieces of the words that are predicted in it.

        A word in two windows is thus learned and scored once.
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

    def collect(self) -> Collector:
        """Returns a collector of the labels of the words."""
        return Collector(len(self._rows), reduce=self._labels_of, finish=self._records)

    @property
    def long_sentences(self) -> int:
        """The number of sentences of more than one row."""
        rows = itertools.groupby(self._rows, key=lambda row: row.sentence)
        return sum(len(list(group)) > 1 for _, group in rows)

    def _labels_of(self, index: int, logits: np.ndarray) -> np.ndarray:
        """Returns the label ids of the words that are predicted in a row."""
        if logits.shape != (self.lengths[index], len(self._names)):
            raise ValueError(
                f"logits of row {index}: found {logits.shape}, allowed: "
                f"({self.lengths[index]}, {len(self._names)})"
            )
        return np.argmax(logits[self._first_pieces(self._rows[index])], axis=-1)

    def _records(self, predicted: Sequence[np.ndarray]) -> list[Record]:
        # Every word is predicted in one row, and the rows are in the order of the words.
        names = iter(self._names[label] for labels in predicted for label in labels.tolist())
        return [
            {
                "id": number,
                "tokens": list(sentence.tokens),
                "label": None if sentence.labels is None else list(sentence.labels),
                "prediction": list(itertools.islice(names, len(sentence.tokens))),
            }
            for number, sentence in enumerate(self._sentences)
        ]

    def _first_pieces(self, row: _Row) -> np.ndarray:
        offsets = self._pieces.offsets[row.offset :]
        window = row.window
        # [CLS] comes before the pieces.
        return 1 + offsets[window.read : window.read_end] - offsets[window.first]
