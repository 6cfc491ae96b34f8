"""The shapes of a fine-tuning run: few where compiling costs more than padding."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.model.shape_cost import ShapeCost
from bert_jax.tasks.epoch_plan import EpochPlan, choose_shapes

LENGTHS = np.random.default_rng(0).integers(10, 128, 400)


def plan(*, program: float, position: float, epochs: int = 3) -> EpochPlan:
    cost = ShapeCost(program, position, epochs)
    return EpochPlan(LENGTHS, batch_size=16, max_length=128, seed=0, cost=cost)


def test_a_short_run_has_one_shape_and_a_long_one_all_that_save_padding() -> None:
    without = EpochPlan(LENGTHS, batch_size=16, max_length=128, seed=0)
    dear, cheap = plan(program=7, position=1e-5), plan(program=1e-9, position=1)
    assert len(dear.shapes) == 1 < len(without.shapes)
    assert cheap.shapes == without.shapes
    assert cheap.mean_length == without.mean_length < dear.mean_length
    assert plan(program=7, position=1e-5, epochs=10_000).shapes == without.shapes


def test_shapes_decide_padding_and_nothing_else() -> None:
    for few, many in zip(
        (plan(program=7, position=1e-5).batch(step) for step in range(30)),
        (plan(program=1e-9, position=1).batch(step) for step in range(30)),
        strict=True,
    ):
        rows = [np.concatenate([group.rows for group in batch]).tolist() for batch in (few, many)]
        assert rows[0] == rows[1]
        assert all(LENGTHS[group.rows].max() <= group.length for group in few if len(group.rows))


kinds = st.tuples(st.integers(1, 16), st.integers(1, 16)).map(lambda pair: tuple(sorted(pair)))


@given(
    batches=st.dictionaries(kinds, st.integers(1, 100), min_size=1, max_size=8),
    program=st.floats(0, 1000),
)
@settings(deadline=None, max_examples=60)
def test_every_kind_fits_what_it_is_padded_to(
    batches: dict[tuple[int, int], int], program: float
) -> None:
    chosen = choose_shapes(batches, sizes=(4, 4), cost=ShapeCost(program, 0.01, 2))
    assert chosen.keys() == batches.keys()
    for (short, long), (to_short, to_long) in chosen.items():
        assert short <= to_short <= to_long
        assert long <= to_long
    if program == 0:
        assert chosen == {kind: kind for kind in batches}


@pytest.mark.parametrize(("count", "expected"), [(1, (64, 64)), (1000, (8, 64))])
def test_two_lengths_in_a_batch_are_worth_it_for_many_batches(
    count: int, expected: tuple[int, int]
) -> None:
    cost = ShapeCost(program=5, position=1e-4, passes=1)
    assert choose_shapes({(8, 64): count}, sizes=(16, 16), cost=cost) == {(8, 64): expected}
