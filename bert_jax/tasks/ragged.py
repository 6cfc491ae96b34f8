"""Many short sequences of ids in one array: a list of Python integers takes ten times the room."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from bert_jax.text.tokenizer import Tokenizer

_TEXTS_AT_ONCE: Final = 10_000


class Ragged:
    """Sequences of unequal length, one after the other: ``[[7, 8], [], [9]]``."""

    def __init__(self, sequences: Iterable[Sequence[int] | np.ndarray]) -> None:
        """Takes the sequences over, which are read once."""
        ends = [0]
        parts: list[np.ndarray] = []
        for sequence in sequences:
            parts.append(np.asarray(sequence, np.int32))
            ends.append(ends[-1] + len(sequence))
        self._flat = np.concatenate([np.zeros(0, np.int32), *parts])
        self.offsets = np.asarray(ends, np.int64)  # where each begins, and the end: [sequences + 1]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        return self.between(index, index + 1)

    def between(self, first: int, end: int) -> np.ndarray:
        """Returns the sequences from `first` up to `end` joined to one: int32."""
        return self._flat[self.offsets[first] : self.offsets[end]]


def encode_ragged(tokenizer: Tokenizer, texts: Iterable[str]) -> Ragged:
    """Returns the pieces of each text, without special ones; the texts are read once."""
    iterator = iter(texts)  # itertools.batched came with Python 3.12
    batches = iter(lambda: list(itertools.islice(iterator, _TEXTS_AT_ONCE)), [])
    return Ragged(itertools.chain.from_iterable(map(tokenizer.encode_batch, batches)))
