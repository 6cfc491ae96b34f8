"""If compiling costs more than padding, rows are padded to few lengths."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.inference.lengths import LEAST_SAVING, buckets_up_to, choose_lengths, fitting, reuse


def cost_of(kept: Sequence[int], lengths: np.ndarray, program: float) -> float:
    return program * len(kept) + float(fitting(lengths, kept).sum())


@given(rows=st.lists(st.integers(1, 40), min_size=1, max_size=60), program=st.floats(0, 2000))
@settings(deadline=None, max_examples=100)
def test_chosen_lengths_have_the_lowest_cost(rows: list[int], program: float) -> None:
    lengths = np.asarray(rows)
    chosen = choose_lengths(lengths, max_length=40, program=program)
    assert chosen == sorted(set(chosen))
    price = max(program, LEAST_SAVING * lengths.sum())
    buckets = [each for each in buckets_up_to(40) if each <= chosen[-1]]
    least = min(
        cost_of(kept, lengths, price)
        for number in range(1, len(buckets) + 1)
        for kept in itertools.combinations(buckets, number)
        if kept[-1] >= lengths.max()
    )
    assert cost_of(chosen, lengths, price) == pytest.approx(least)


def test_more_rows_get_more_programs() -> None:
    lengths = np.random.default_rng(0).integers(3, 100, 200)
    assert choose_lengths(lengths, max_length=100, program=20_000) == [100]
    many = choose_lengths(np.tile(lengths, 10_000), max_length=100, program=20_000)
    assert 3 <= len(many) <= 8


def test_a_slightly_longer_program_serves_shorter_rows() -> None:
    assert reuse([12, 40], [64, 20, 256]) == [20, 64]
    assert reuse([40, 48], [64]) == [64]
    assert reuse([24, 96], [64]) == [24, 96]
    assert reuse([24, 96], [64], slack=40) == [64, 96]
