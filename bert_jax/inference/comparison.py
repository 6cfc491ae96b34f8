"""Compares encoded texts on the host. Each kind of text head has its comparison here."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from bert_jax.model.text_head import PoolingSection, SparseHeadSection, VectorHeadSection

if TYPE_CHECKING:
    from scipy.sparse import csr_array

HeadT = TypeVar("HeadT", bound=VectorHeadSection)


class Comparison(abc.ABC, Generic[HeadT]):
    """How outputs of `VectorHead` are stored and compared."""

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
    """The pieces of a text that have a weight. The names are those of a row of `csr_array`."""

    indices: np.ndarray  # int32 [active]: ids of pieces, increasing
    data: np.ndarray  # float32 [active]: their weights
    shape: tuple[int]  # number of pieces that can have a weight


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
        """Returns the vectors, [texts, pieces], from `SparseVector`s or rows of such an array."""
        from scipy.sparse import csr_array  # here, because it takes 0.1 s

        ends = np.cumsum([0, *(len(each.data) for each in kept)])
        data, pieces = (
            np.concatenate([getattr(each, name) for each in kept]) for name in ("data", "indices")
        )
        return csr_array((data, pieces, ends), shape=(len(kept), kept[0].shape[-1]))

    def scores(self, queries: "csr_array", passages: "csr_array") -> np.ndarray:
        """Returns the dot products, float32 [queries, passages]."""
        return (queries @ passages.T).toarray()


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """Returns vectors of length 1, [rows, width]."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


COMPARISONS: Mapping[type[VectorHeadSection], Callable[..., Comparison[Any]]] = {
    PoolingSection: VectorComparison,
    SparseHeadSection: SparseComparison,
}
"""The comparison of each kind of text head."""


def comparison_of(head: VectorHeadSection) -> Comparison[Any]:
    """Returns how the outputs of a text head are compared."""
    return COMPARISONS[type(head)](head)
