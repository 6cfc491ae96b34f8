"""Compares encoded texts on the host. Each kind of text head has its comparison here."""

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, TypeVar

import numpy as np

from bert_jax.model.text_head import (
    PoolingSection,
    SparseHeadSection,
    TokenVectorsSection,
    VectorHeadSection,
)
from bert_jax.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from scipy.sparse import csr_array

HeadT = TypeVar("HeadT", bound=VectorHeadSection)
_TOKENS_AT_ONCE: Final = 4096  # of queries and of passages; their cosines take 64 MiB


class Comparison(abc.ABC, Generic[HeadT]):
    """How outputs of `VectorHead` are stored and compared."""

    dense: ClassVar[bool] = False
    """Whether collected texts are an array of vectors, compared by their dot products."""

    def __init__(self, head: HeadT) -> None:
        self.head = head

    def kept(self, output: np.ndarray, ids: Sequence[int], *, query: bool) -> Any:
        """Returns what remains of the output of a text. `ids` are its pieces with special ones."""
        del ids, query
        return output

    @abc.abstractmethod
    def collect(self, kept: Sequence[Any]) -> Any:
        """Returns several texts in the form in which they are compared."""

    def scores(self, queries: Any, passages: Any) -> np.ndarray:
        """Returns the similarities of collected texts, float32 [queries, passages]."""
        return queries @ passages.T

    def of_pair(self, first: Any, second: Any) -> float:
        """Returns the similarity of a pair in a table of scored pairs."""
        return float(self.scores(self.collect([first]), self.collect([second]))[0, 0])


class VectorComparison(Comparison[PoolingSection]):
    """Compares vectors by the cosine or the dot product."""

    dense = True

    def kept(self, output: np.ndarray, ids: Sequence[int], *, query: bool) -> np.ndarray:
        """Returns a vector without the numbers that are cut off."""
        del ids, query
        return output[: self.head.dimensions]

    def collect(self, kept: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the vectors, [texts, width]."""
        vectors = np.stack(kept)
        return unit_vectors(vectors) if self.head.by_cosine else vectors

    def of_pair(self, first: np.ndarray, second: np.ndarray) -> float:
        """Returns the cosine of two vectors."""
        first, second = unit_vectors(np.stack([first, second]))
        return float(first @ second)


class SparseVector(NamedTuple):
    """The pieces of a text that have a weight. A row of `csr_array` has the same names."""

    indices: np.ndarray  # int32 [active]: ids of pieces, increasing
    data: np.ndarray  # float32 [active]: their weights
    shape: tuple[int]  # number of pieces that can have a weight


def piece_names(tokenizer: Tokenizer, width: int) -> np.ndarray:
    """Returns the names of `width` pieces, object [width]. Ids without a piece are named ``[id]``.

    A model may have more rows in its embedding than its tokenizer has pieces.
    """
    known = tokenizer.pieces(range(min(width, tokenizer.vocab_size)))
    return np.array([*known, *(f"[{each}]" for each in range(len(known), width))], object)


def sparse_rows(rows: Sequence[Any], *, width: int | None = None) -> "csr_array":
    """Returns an array [rows, width] of `SparseVector`s, or of rows of such an array.

    `width` is the number of pieces if there may be no row.
    """
    from scipy.sparse import csr_array  # here, because it takes 0.1 s

    shape = len(rows), rows[0].shape[-1] if width is None else width
    ends = np.cumsum([0, *(len(each.data) for each in rows)])
    data = np.concatenate([np.empty(0, np.float32), *(each.data for each in rows)])
    pieces = np.concatenate([np.empty(0, np.int32), *(each.indices for each in rows)])
    return csr_array((data, pieces, ends), shape=shape)


class SparseComparison(Comparison[SparseHeadSection]):
    """Compares sparse vectors by the dot product. Only weights above 0 are stored."""

    def kept(self, output: np.ndarray, ids: Sequence[int], *, query: bool) -> SparseVector:
        """Returns the largest weights of an output, see `SparseHeadSection.top_k`."""
        del ids, query
        pieces = np.flatnonzero(output)
        if self.head.top_k is not None and self.head.top_k < len(pieces):
            # Of equal weights, the first pieces remain, as with `SparseHead.cut`.
            pieces = np.sort(pieces[np.argsort(-output[pieces], kind="stable")[: self.head.top_k]])
        return SparseVector(pieces.astype(np.int32), output[pieces], output.shape)

    def collect(self, kept: Sequence[Any]) -> "csr_array":
        """Returns the vectors, [texts, pieces]."""
        return sparse_rows(kept)

    def scores(self, queries: "csr_array", passages: "csr_array") -> np.ndarray:
        """Returns the dot products, float32 [queries, passages]."""
        return (queries @ passages.T).toarray()


class TokenVectors(NamedTuple):
    """The vectors of the tokens of several texts."""

    flat: np.ndarray  # float32 [tokens of all texts, width]
    starts: np.ndarray  # index of the first token of each text, and the end of the last

    def parts(self) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Yields few texts at a time: which ones, their vectors, and the first token of each."""
        first, texts = 0, len(self.starts) - 1
        while first < texts:
            most = self.starts[first] + _TOKENS_AT_ONCE
            end = max(int(np.searchsorted(self.starts, most, side="right")) - 1, first + 1)
            start, stop = self.starts[first], self.starts[end]
            yield slice(first, end), self.flat[start:stop], self.starts[first:end] - start
            first = end


class TokenComparison(Comparison[TokenVectorsSection]):
    """Sums, over the tokens of a query, the largest cosine with a token of a passage."""

    def positions(self, ids: Sequence[int], *, query: bool) -> np.ndarray:
        """Returns the positions of the tokens that have a vector."""
        return np.flatnonzero(~np.isin(ids, () if query else self.head.skipped))

    def kept(self, output: np.ndarray, ids: Sequence[int], *, query: bool) -> np.ndarray:
        """Returns the vectors of a text's tokens, float32 [tokens, width]."""
        return output[self.positions(ids, query=query)]

    def collect(self, kept: Sequence[np.ndarray]) -> TokenVectors:
        """Returns the vectors of all texts."""
        return TokenVectors(np.concatenate(kept), np.cumsum([0, *map(len, kept)]))

    def scores(self, queries: TokenVectors, passages: TokenVectors) -> np.ndarray:
        """Returns the scores, float32 [queries, passages]. Cosines of few texts are in memory."""
        found = np.empty((len(queries.starts) - 1, len(passages.starts) - 1), np.float32)
        for rows, asked, firsts in queries.parts():
            for columns, searched, starts in passages.parts():
                best = np.maximum.reduceat(asked @ searched.T, starts, axis=1)
                found[rows, columns] = np.add.reduceat(best, firsts, axis=0)
        return found


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """Returns vectors of length 1, [rows, width]."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


COMPARISONS: Mapping[type[VectorHeadSection], Callable[..., Comparison[Any]]] = {
    PoolingSection: VectorComparison,
    SparseHeadSection: SparseComparison,
    TokenVectorsSection: TokenComparison,
}
"""The comparison of each kind of text head."""


def comparison_of(head: VectorHeadSection) -> Comparison[Any]:
    """Returns how the outputs of a text head are compared."""
    return COMPARISONS[type(head)](head)
