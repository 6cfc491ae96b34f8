"""Examples as spans of a corpus' tokens."""

from typing import NamedTuple

import numpy as np

from bert_jax.data.rng import stream


class Pair(NamedTuple):
    """``[CLS] A [SEP] B [SEP]``: two spans of the corpus' tokens."""

    first_start: int
    first_stop: int
    second_start: int
    second_stop: int
    next_sentence_label: int
    """0 if the second span follows the first in its document; 1 if it comes from another document
    (``nsp``) or precedes the first in its own (``sop``)."""

    @property
    def token_ranges(self) -> tuple[tuple[int, int], ...]:
        """Start and stop of each run of tokens between special tokens, in order."""
        return (self.first_start, self.first_stop), (self.second_start, self.second_stop)

    @property
    def first_length(self) -> int:
        """Tokens of type 0: ``[CLS] A [SEP]``."""
        return self.first_stop - self.first_start + 2

    @property
    def length(self) -> int:
        """Tokens of ``[CLS] A [SEP] B [SEP]``."""
        return self.first_length + self.second_stop - self.second_start + 1


class Single(NamedTuple):
    """``[CLS] A [SEP]``, or ``[CLS] A [SEP] A' [SEP]`` across a document's end: all of type 0."""

    token_ranges: tuple[tuple[int, int], ...]  # start and stop of each document's part, in order

    @property
    def next_sentence_label(self) -> int:
        """0, without meaning where there is no second span."""
        return 0

    @property
    def first_length(self) -> int:
        """Equals :attr:`length`, which says that there is no second span."""
        return self.length

    @property
    def length(self) -> int:
        """Tokens, [CLS] and a [SEP] after each document's part included."""
        return 1 + sum(stop - start + 1 for start, stop in self.token_ranges)


class SentenceOffsets(NamedTuple):
    """Where sentences and documents begin; lists, since bisection looks at single numbers."""

    bounds: list[int]  # token offset of every sentence of all documents, and of the end
    starts: list[int]  # first sentence of every document, and the number of sentences


class DocumentPass(NamedTuple):
    """One of the passes in which documents become examples."""

    number: int
    of: int  # passes in all
    documents: list[int]  # numbers of the documents in this pass, ascending
    keys: list[int]  # of all documents
    seed: int

    def rng(self, document: int) -> np.random.Generator:
        """Returns the random stream of a document in this pass."""
        return stream(self.seed, "pairing", self.number, self.keys[document])

    def shuffled(self) -> list[int]:
        """Returns the documents in an order of this pass; of a single pass in their own order."""
        if self.of == 1:
            return self.documents
        ranks = stream(self.seed, "order", self.number).random(len(self.keys))[self.documents]
        return np.asarray(self.documents)[np.argsort(ranks, kind="stable")].tolist()
