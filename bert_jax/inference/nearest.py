"""Finds the most similar texts of every query by brute force, in blocks.

Shape suffixes: Q queries of a block, P texts of a block, W width of a vector, K kept texts of a
query, E known pairs of both blocks.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from bert_jax.inference.comparison import Comparison
from bert_jax.model.embedding_head import dot_products
from bert_jax.parallel.sharding_rules import batch_parts, batch_sharding, replicated

QUERIES: Final = 1024  # of a block
TEXTS: Final = 1 << 14  # of a block: 64 MiB of similarities


class Best(NamedTuple):
    """The most similar texts of the queries of a block, best first. Free places have the text −1.

    Of equal similarities, the text that was added first is first.
    """

    scores_QK: Array  # float32, -inf in free places
    texts_QK: Array  # int32


class NearestTexts:
    """The most similar texts of every query. Only one block of texts is in memory at a time.

    The queries and their results are on the devices, divided among them.
    """

    def __init__(
        self,
        queries: Sequence[Any],
        known: np.ndarray,
        *,
        count: int,
        comparison: Comparison[Any],
        mesh: Mesh,
        keep: int,
        sizes: tuple[int, int] = (QUERIES, TEXTS),
    ) -> None:
        """Places the queries on the devices.

        Args:
            queries: results of `Comparison.collect` for `sizes[0]` queries each; the last one may
                have fewer.
            known: pairs of query and text that are scored, but not found; int [pairs, 2].
            count: number of queries.
            comparison: how texts are compared.
            mesh: devices.
            keep: texts to keep for each query.
            sizes: queries and texts in a block.
        """
        parts = batch_parts(mesh)
        self._rows, self._width = -(-sizes[0] // parts) * parts, sizes[1]
        self._size, self._count = sizes[0], count
        self._comparison, self._mesh, self._known = comparison, mesh, known
        self._split = batch_sharding(mesh)
        self._queries = [self._padded(each) if comparison.dense else each for each in queries]
        shape = (self._rows, keep)
        empty = np.full(shape, -np.inf, np.float32), np.full(shape, -1, np.int32)
        self._best = [Best(*jax.device_put(empty, self._split)) for _ in queries]
        self._scores: list[tuple[np.ndarray, Array]] = []  # (indices in `known`, their scores)
        self._added = 0

    def add(self, texts: Any, count: int) -> None:
        """Compares a block of collected texts with all queries."""
        blocks, columns = self._known[:, 0] // self._size, self._known[:, 1] - self._added
        here = (columns >= 0) & (columns < count)
        if self._comparison.dense:
            filled = np.pad(texts, ((0, self._width - count), (0, 0)))
            texts = jax.device_put(filled, replicated(self._mesh))
        for block, (queries, best) in enumerate(zip(self._queries, self._best, strict=True)):
            chosen = np.flatnonzero(here & (blocks == block))
            # Few sizes, because each one is compiled. Pairs outside of the block are ignored.
            pairs = np.full((2, 1 << max(len(chosen) - 1, 0).bit_length()), self._rows, np.int32)
            pairs[0, : len(chosen)] = self._known[chosen, 0] % self._size
            pairs[1, : len(chosen)] = columns[chosen]
            limits = np.asarray([self._added, count], np.int32)
            if self._comparison.dense:
                merged = _compare(best, queries, texts, limits, pairs)
            else:
                found = self._comparison.scores(queries, texts)
                found = np.pad(found, ((0, 0), (0, self._width - count)))
                merged = _merge(best, self._padded(found), limits, pairs)
            self._best[block], scores = merged
            self._scores.append((chosen, scores))
        self._added += count

    def found(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns scores and texts of each query, [queries, K], and the scores of `known`."""
        scores, texts = (
            np.concatenate([np.asarray(each)[: self._size] for each in both])[: self._count]
            for both in zip(*self._best, strict=True)
        )
        of_known = np.full(len(self._known), np.nan, np.float32)
        for chosen, found in self._scores:
            of_known[chosen] = np.asarray(found)[: len(chosen)]
        return scores, texts, of_known

    def _padded(self, rows: np.ndarray) -> Array:
        return jax.device_put(np.pad(rows, ((0, self._rows - len(rows)), (0, 0))), self._split)


@jax.jit
def _compare(
    best: Best,
    queries_QW: Float[Array, "queries width"],
    texts_PW: Float[Array, "texts width"],
    limits: Int[Array, "2"],
    pairs: Int[Array, "2 pairs"],
) -> tuple[Best, Float[Array, "pairs"]]:
    return _merge(best, dot_products(queries_QW, texts_PW), limits, pairs)


@jax.jit
def _merge(
    best: Best,
    found_QP: Float[Array, "queries texts"],
    limits: Int[Array, "2"],
    pairs: Int[Array, "2 pairs"],
) -> tuple[Best, Float[Array, "pairs"]]:
    """Returns the best texts so far, and the scores of pairs, which are not among them.

    `limits` are the number of the block's first text, and the number of its texts.
    """
    first, count = limits
    place = tuple(pairs)
    scores_E = found_QP.at[place].get(mode="fill", fill_value=jnp.nan)
    found_QP = found_QP.at[place].set(-jnp.inf, mode="drop")
    places_P = jnp.arange(found_QP.shape[1], dtype=jnp.int32)
    found_QP = jnp.where(places_P[None] < count, found_QP, -jnp.inf)
    texts_QP = jnp.broadcast_to(first + places_P, found_QP.shape)
    # Earlier texts are first, because top_k prefers the first of equal numbers.
    all_scores = jnp.concatenate([best.scores_QK, found_QP], axis=1)
    all_texts = jnp.concatenate([best.texts_QK, texts_QP], axis=1)
    scores_QK, at_QK = jax.lax.top_k(all_scores, best.scores_QK.shape[1])
    texts_QK = jnp.take_along_axis(all_texts, at_QK, axis=1)
    return Best(scores_QK, jnp.where(scores_QK > -jnp.inf, texts_QK, -1)), scores_E
