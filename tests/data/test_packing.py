"""The packing plan: first-fit-decreasing over lengths, and the share of padding."""

import itertools

import hypothesis
import numpy as np
from hypothesis import strategies as st

from bert_jax.data.loader.packing import PackingPlan, first_fit_decreasing
from bert_jax.data.loader.row_order import AffinePermutation

settings = hypothesis.settings(deadline=None, max_examples=100)
CAPACITY = 24

lengths_of_datasets = st.lists(st.integers(1, CAPACITY), min_size=1, max_size=120)


def counts_of(lengths: list[int]) -> np.ndarray:
    return np.bincount(lengths)


def one_by_one(lengths: list[int], *, capacity: int, max_examples: int) -> list[tuple[int, ...]]:
    """Packs lengths one by one, first fit, in decreasing order."""
    rows: list[list[int]] = []
    for length in sorted(lengths, reverse=True):
        for row in rows:
            if sum(row) + length <= capacity and len(row) < max_examples:
                row.append(length)
                break
        else:
            rows.append([length])
    return [tuple(row) for row in rows]


@settings
@hypothesis.given(lengths_of_datasets, st.integers(1, 6))
def test_batched_packing_equals_one_by_one(lengths, max_examples):
    patterns = first_fit_decreasing(
        counts_of(lengths), capacity=CAPACITY, max_examples=max_examples
    )
    rows = [pattern.lengths for pattern in patterns for _ in range(pattern.rows)]
    assert rows == one_by_one(lengths, capacity=CAPACITY, max_examples=max_examples)
    assert all(left.lengths != right.lengths for left, right in itertools.pairwise(patterns))


@settings
@hypothesis.given(lengths_of_datasets, st.integers(2, 6))
def test_every_example_has_one_place_in_the_rows(lengths, max_examples):
    plan = PackingPlan(counts_of(lengths), capacity=CAPACITY, max_examples=max_examples)
    rows = [plan.examples(row) for row in range(plan.rows)]
    for row in rows:
        assert sum(slot.length for slot in row) <= CAPACITY
        assert 1 <= len(row) <= max_examples
    expected = [(length, rank) for length, n in enumerate(counts_of(lengths)) for rank in range(n)]
    assert sorted(slot for row in rows for slot in row) == expected


@settings
@hypothesis.given(st.integers(1, 200), st.integers(0, 2**70), st.integers(0, 5))
def test_an_affine_permutation_is_a_permutation_in_every_epoch(count, seed, epoch):
    permutation = AffinePermutation(count, seed, "exchange", 0)
    assert sorted(permutation.at(k, epoch=epoch) for k in range(count)) == list(range(count))
