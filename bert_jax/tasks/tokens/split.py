"""The rows of a file of labelled tokens, and the labels predicted for them."""

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_jax.data.rows.collate import Ragged, encode_ragged
from bert_jax.tasks.family import NO_LABEL, Encoded, Record, Split, content_hash, count_notes
from bert_jax.tasks.tokens.conll import Sentence
from bert_jax.text.tokenizer import Tokenizer


class Window(NamedTuple):
    """Words `first` to `end` of a sentence; this window predicts words `read` to `read_end`."""

    first: int
    end: int
    read: int
    read_end: int


def cut_windows(lengths: np.ndarray, *, room: int, stride: int) -> list[Window]:
    """Cuts a sentence between words.

    Ten words of one piece with room 6 and stride 4 → words 0–6 and 4–10, which predict 0–5 and
    5–10. One window predicts each word: the one with the most pieces on the word's shorter side
    (the maximum context of `run_squad.py` in google-research/bert), the earlier one in a draw. The
    words have 1 to `room` pieces, int [words]; `stride`, 1 to `room`, is in pieces from the
    beginning of a window to that of the next, rounded to whole words.
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
        # The next window must hold the word at `end`, and no word may be left out.
        following = max(starts[first] + stride, ends[end] - room)
        first = min(int(np.searchsorted(starts, following)), end)
    windows = []
    read = 0
    for index, (first, end) in enumerate(bounds):
        read_end = end
        if index + 1 < len(bounds):
            # This window reads a shared word while as many pieces follow it here as precede it in
            # the next window; its other sides are longer then.
            shared = np.arange(max(bounds[index + 1][0], read), end)
            after = ends[end - 1] - ends[shared]
            before = starts[shared] - starts[bounds[index + 1][0]]
            read_end = end - int(np.sum(after < before))
        windows.append(Window(first, end, read, read_end))
        read = read_end
    return windows


class _Row(NamedTuple):
    sentence: int
    offset: int  # index of the sentence's first word among the words of the file
    window: Window


class TokenSplit(Split):
    """A file of sentences. A long sentence is several rows."""

    def __init__(
        self,
        sentences: Sequence[Sentence],
        tokenizer: Tokenizer,
        *,
        labels: Sequence[str],
        room: int,
        stride: int,
    ) -> None:
        """Encodes each token by itself, as between spaces, and cuts the sentences into rows.

        Labels are those of the model; a row holds `room` pieces beside [CLS] and [SEP]; `stride` is
        as in `cut_windows`. A word without pieces, of control characters, is encoded as [UNK].
        """
        self._sentences, self._special = sentences, tokenizer.special
        self.examples, self.fingerprint = len(sentences), content_hash(sentences)
        self._names, self._room = labels, room
        self._ids = {name: index for index, name in enumerate(labels)}
        tokens = itertools.chain.from_iterable(sentence.tokens for sentence in sentences)
        words = encode_ragged(tokenizer, tokens)
        sizes = np.diff(words.offsets)
        self._without_piece, self._cut = int(np.sum(sizes == 0)), int(np.sum(sizes > room))
        unknown = np.asarray([tokenizer.special.unk], np.int32)
        self._pieces = Ragged(
            words[index][:room] if size else unknown for index, size in enumerate(sizes.tolist())
        )
        self._rows: list[_Row] = []
        lengths = np.diff(self._pieces.offsets)
        offset = 0
        for number, sentence in enumerate(sentences):
            end = offset + len(sentence.tokens)
            windows = cut_windows(lengths[offset:end], room=room, stride=stride)
            self._rows += [_Row(number, offset, window) for window in windows]
            offset = end
        bounds = np.asarray(
            [(row.offset + row.window.first, row.offset + row.window.end) for row in self._rows]
        )
        starts, ends = self._pieces.offsets[bounds].T
        self.lengths = (ends - starts + 2).astype(np.int32)

    def notes(self, path: Path, *, stray: int) -> list[str]:
        """Returns findings about the file, a line each; `stray` is of `ConllFile`."""
        rows = Counter(row.sentence for row in self._rows)
        found = {
            "words have no piece and are read as [UNK]": self._without_piece,
            f"words have more than {self._room} pieces and are cut": self._cut,
            f"sentences have more than {self._room} pieces and are read in windows": (
                sum(count > 1 for count in rows.values())
            ),
            "tokens have a label and others none: all are read as unlabelled": stray,
        }
        return count_notes(path, found)

    def row(self, index: int) -> Encoded:
        """Returns a window, with labels at the first pieces of the words that it predicts.

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

    def reduce(self, index: int, logits: np.ndarray) -> np.ndarray:
        """Returns the label ids of the words that a row predicts."""
        return np.argmax(logits[self._first_pieces(self._rows[index])], axis=-1)

    def records(self, kept: Sequence[np.ndarray]) -> list[Record]:
        """Returns records with a predicted label for every token."""
        # Every word is predicted in one row, and the rows are in the order of the words.
        names = iter([self._names[label] for label in np.concatenate(kept).tolist()])
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
