"""Which lengths rows are padded to: few where compiling costs more than padding."""

import itertools
from collections.abc import Collection, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.inference.lengths import (
    BucketRows,
    PaddedLengths,
    buckets_of,
    buckets_up_to,
    choose_lengths,
)
from bert_jax.model.shape_cost import ShapeCost

BUCKETS = (8, 12, 16, 24, 32)
SIZE = 4


def seconds(
    kept: Sequence[int], rows: Sequence[BucketRows], compiled: Collection[int], cost: ShapeCost
) -> float:
    """What compiling for these lengths and computing with them take, counted batch by batch."""
    total = cost.program * len(set(kept) - set(compiled))
    for length in kept:
        shorter = max((other for other in kept if other < length), default=0)
        members = [each for each in rows if shorter < each.length <= length]
        batches = -(-sum(each.now for each in members) // SIZE)
        positions = (batches * SIZE + sum(each.before for each in members)) * length
        total += positions * cost.position * cost.passes
    return total


counts = st.lists(st.integers(0, 60), min_size=len(BUCKETS), max_size=len(BUCKETS))


@given(
    now=counts.filter(any),
    before=counts,
    compiled=st.sets(st.sampled_from(BUCKETS)),
    program=st.floats(0, 100),
    passes=st.integers(1, 5),
)
@settings(deadline=None, max_examples=100)
def test_no_other_lengths_cost_less(
    now: list[int], before: list[int], compiled: set[int], program: float, passes: int
) -> None:
    rows = [BucketRows(*each) for each in zip(BUCKETS, now, before, strict=True)]
    cost = ShapeCost(program, 0.01, passes)
    chosen = choose_lengths(rows, size=SIZE, compiled=compiled, cost=cost)
    longest = max(each.length for each in rows if each.now or each.before)
    assert chosen == sorted(chosen)
    assert chosen[-1] >= longest
    # One for all and every bucket are among them.
    others = (
        kept
        for number in range(1, len(BUCKETS) + 1)
        for kept in itertools.combinations(BUCKETS, number)
        if kept[-1] >= longest
    )
    least = min(seconds(kept, rows, compiled, cost) for kept in others)
    assert seconds(chosen, rows, compiled, cost) == pytest.approx(least)


def test_few_rows_share_a_program_and_many_keep_their_buckets() -> None:
    lengths = np.random.default_rng(0).integers(3, 100, 200)
    cost = ShapeCost(program=2, position=1e-4, passes=1)
    own = buckets_of(lengths, buckets_up_to(100))
    few = PaddedLengths(100, cost).of(lengths, size=16, compiled=())
    assert set(few) == {100}
    many = PaddedLengths(100, cost).of(np.tile(lengths, 10_000), size=16, compiled=())
    assert (many == np.tile(own, 10_000)).all()
    # A run that evaluates as often counts all its evaluations.
    often = PaddedLengths(100, cost._replace(passes=10_000)).of(lengths, size=16, compiled=())
    assert 1 < len(set(often)) <= len(set(own))
    assert (PaddedLengths(100, None).of(lengths, size=16, compiled=()) == own).all()


def test_a_longer_program_that_is_there_serves_until_padding_has_cost_as_much() -> None:
    lengths = PaddedLengths(512, ShapeCost(program=1, position=1e-3, passes=1))
    compiled = {(1, 64)}
    used = [int(lengths.of(np.asarray([12]), size=1, compiled=compiled)[0]) for _ in range(40)]
    # Each row is 52 positions of padding: the 20th brings it to more than a second.
    assert used == [64] * 19 + [12] * 21
    # Programs for other batch sizes serve none of these rows.
    assert lengths.of(np.asarray([12] * 8), size=8, compiled=compiled).tolist() == [12] * 8


def test_rows_that_come_again_keep_their_lengths() -> None:
    lengths = PaddedLengths(64, ShapeCost(program=1, position=1e-3, passes=2))
    first, other = np.asarray([10, 10, 30]), np.asarray([16] * 200)
    before = lengths.of(first, size=1, compiled=())
    assert before.tolist() == [32, 32, 32]
    # A second split has brought a program that the first would have used.
    assert lengths.of(other, size=1, compiled={(1, 32)}).tolist() == [16] * 200
    assert lengths.of(first, size=1, compiled={(1, 16), (1, 32)}).tolist() == before.tolist()
