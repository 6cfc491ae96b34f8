"""The packing plan: first-fit-decreasing over lengths, and its padding."""

import itertools
import time

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from bert_jax.data.loader.row_order import AffinePermutation, LengthIndex
from bert_jax.data.rows.packing_plan import PackingPlan, first_fit_decreasing

settings = hypothesis.settings(deadline=None, max_examples=100)
CAPACITY = 24

lengths_of_datasets = st.lists(st.integers(1, CAPACITY), min_size=1, max_size=120)


def counts_of(lengths: list[int]) -> np.ndarray:
    return np.bincount(lengths)


def one_by_one(lengths: list[int], *, capacity: int, max_examples: int) -> list[tuple[int, ...]]:
    """First-fit-decreasing as it is defined."""
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
def test_equal_lengths_placed_together_are_where_one_by_one_puts_them(lengths, max_examples):
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


def test_padding_is_what_the_rows_leave_empty():
    plan = PackingPlan(np.bincount([5, 3, 3]), capacity=8, max_examples=8)
    assert [pattern.lengths for pattern in plan.patterns] == [(5, 3), (3,)]
    assert plan.padding_share == pytest.approx(5 / 16)
    assert plan.examples_per_row == 1.5


def test_planning_takes_no_longer_for_ten_billion_examples():
    counts = np.random.default_rng(0).integers(0, 2 * 10**8, 513)
    started = time.monotonic()
    plan = PackingPlan(counts, capacity=512, max_examples=8)
    assert time.monotonic() - started < 5
    assert plan.padding_share < 0.02
    slots = plan.examples(plan.rows // 2)
    assert sum(slot.length for slot in slots) <= 512


@hypothesis.settings(deadline=None, max_examples=15)
@hypothesis.given(st.integers(1, 9000), st.integers(1, 5), st.integers(0, 2**32))
def test_the_examples_of_a_length_are_found_in_order(count, longest, seed):
    lengths = np.random.default_rng(seed).integers(1, longest + 1, count).astype(np.uint16)
    index = LengthIndex(lengths)
    np.testing.assert_array_equal(index.counts, np.bincount(lengths))
    for length in range(1, int(lengths.max()) + 1):
        expected = np.flatnonzero(lengths == length)
        ranks = range(0, len(expected), 1 + len(expected) // 50)
        assert [index.find(lengths, length, rank) for rank in ranks] == expected[ranks].tolist()
        if len(expected):
            assert index.find(lengths, length, len(expected) - 1) == expected[-1]


@settings
@hypothesis.given(st.integers(1, 200), st.integers(0, 2**70), st.integers(0, 5))
def test_an_affine_permutation_is_a_permutation_in_every_epoch(count, seed, epoch):
    permutation = AffinePermutation(count, seed, "exchange", 0)
    assert sorted(permutation.at(k, epoch=epoch) for k in range(count)) == list(range(count))


def test_affine_permutations_are_a_function_of_epoch_seed_and_key():
    def order(permutation: AffinePermutation, epoch: int) -> tuple[int, ...]:
        return tuple(permutation.at(k, epoch=epoch) for k in range(1000))

    first = AffinePermutation(1000, 7, "exchange", 0)
    orders = [order(first, epoch) for epoch in range(4)]
    assert order(first, 1) == orders[1] == order(AffinePermutation(1000, 7, "exchange", 0), 1)
    others = [
        order(AffinePermutation(1000, 8, "exchange", 0), 0),
        order(AffinePermutation(1000, 7, "exchange", 1), 0),
    ]
    assert len({*orders, *others}) == 6
