"""The most similar texts of queries equal a brute force, for any blocks and devices."""

from typing import Any

import numpy as np
import pytest

from bert_jax.inference.comparison import Comparison, VectorComparison, comparison_of
from bert_jax.inference.nearest import NearestTexts
from bert_jax.model.text_head import PoolingSection
from tests.train.harness import mesh_of

QUERIES, TEXTS, KEEP = 21, 50, 9


class OnHost(VectorComparison):
    """Dot products that are computed on the host, as those of sparse vectors."""

    dense = False


@pytest.mark.parametrize(
    ("sizes", "shape", "kind"),
    [
        ((21, 50), (1, 1, 1), VectorComparison),
        ((8, 16), (1, 1, 1), VectorComparison),
        ((5, 7), (2, 2, 2), VectorComparison),
        ((8, 16), (8, 1, 1), OnHost),
        ((21, 3), (1, 1, 1), OnHost),  # blocks have fewer texts than are kept
    ],
    ids=str,
)
def test_nearest_texts_equal_a_brute_force(
    sizes: tuple[int, int], shape: tuple[int, ...], kind: type[Comparison[Any]]
) -> None:
    """Many similarities are equal: the text that was added first is first."""
    rng = np.random.default_rng(0)
    queries, texts = (
        rng.integers(-1, 2, (count, 4)).astype(np.float32) for count in (QUERIES, TEXTS)
    )
    known = np.unique(rng.integers(0, (QUERIES, TEXTS), (40, 2)), axis=0)
    known = np.concatenate([known, [[3, at] for at in range(45)]])  # a query with few candidates
    known = rng.permutation(np.unique(known, axis=0))
    parts = [queries[at : at + sizes[0]] for at in range(0, QUERIES, sizes[0])]
    search = NearestTexts(
        parts,
        known,
        count=QUERIES,
        comparison=kind(PoolingSection(normalize=False)),
        mesh=mesh_of(shape),
        keep=KEEP,
        sizes=sizes,
    )
    for at in range(0, TEXTS, sizes[1]):
        block = texts[at : at + sizes[1]]
        search.add(block, len(block))
    scores, found, of_known = search.found()
    products = queries @ texts.T
    np.testing.assert_array_equal(of_known, products[tuple(known.T)])
    products[tuple(known.T)] = -np.inf
    for row, expected in enumerate(products):
        order = np.argsort(-expected, kind="stable")[:KEEP]
        order = np.where(expected[order] > -np.inf, order, -1)
        assert found[row].tolist() == order.tolist()
        np.testing.assert_array_equal(scores[row][order >= 0], expected[order[order >= 0]])
    assert (found[3] == -1).any()
    assert comparison_of(PoolingSection()).dense
