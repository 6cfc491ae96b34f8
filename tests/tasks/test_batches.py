"""Rows of many lengths become batches of few shapes."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data.host_share import HostShare
from bert_jax.data.rows.collate import count_tokens
from bert_jax.inference.lengths import buckets_up_to
from bert_jax.model.shape_cost import ShapeCost
from bert_jax.tasks.batches import WEIGHTS, EpochPlan, TrainBatches, collate
from bert_jax.tasks.family import NO_LABEL, Encoded, Split
from tests.project import refuses

MAX_LENGTH = 100
CHEAP = ShapeCost(0)


class Rows(Split):
    """A split whose row `n` has the label `n`."""

    def __init__(
        self, lengths: Sequence[int], *, choices: int = 1, per_piece: bool = False
    ) -> None:
        self.lengths = np.asarray(lengths, np.int32)
        self.examples = len(lengths)
        self.fingerprint = "f" * 32
        self._choices, self._per_piece = choices, per_piece

    def row(self, index: int) -> Encoded:
        size = int(self.lengths[index])
        ids = [list(range(1, size + 1 - choice)) for choice in range(self._choices)]
        label: Any = np.full(size, index) if self._per_piece else index
        return Encoded(ids, [size // 2] * self._choices, {"label": label})


def plan(lengths: Sequence[int], **changes: Any) -> EpochPlan:
    values = {"batch_size": 4, "max_length": MAX_LENGTH, "seed": 0, "cost": CHEAP, **changes}
    return EpochPlan(np.asarray(lengths), **values)


def rows_of(made: EpochPlan, step: int) -> list[int]:
    return made.batch(step).rows.tolist()


lengths_of_rows = st.lists(st.integers(3, MAX_LENGTH), min_size=1, max_size=120)


@given(lengths=lengths_of_rows, batch_size=st.integers(1, 9), epoch=st.integers(0, 3))
@settings(deadline=None, max_examples=60)
def test_every_row_comes_once_an_epoch_and_fits(
    lengths: list[int], batch_size: int, epoch: int
) -> None:
    made = plan(lengths, batch_size=batch_size)
    batches = [made.batch(epoch * made.steps + at) for at in range(made.steps)]
    assert made.steps == -(-len(lengths) // batch_size)
    assert sorted(np.concatenate([batch.rows for batch in batches])) == list(range(len(lengths)))
    assert sum(len(batch.rows) < batch_size for batch in batches) <= 1
    assert all(len(batch.rows) <= batch_size for batch in batches)
    assert all(lengths[row] <= batch.length for batch in batches for row in batch.rows)
    assert {(batch.length, None) for batch in batches} == made.shapes
    assert {length for length, _ in made.shapes} <= {*buckets_up_to(MAX_LENGTH)}


@given(lengths=lengths_of_rows, seed=st.integers(1, 5))
@settings(deadline=None, max_examples=30)
def test_batch_lengths_do_not_depend_on_the_seed(lengths: list[int], seed: int) -> None:
    one, other = plan(lengths), plan(lengths, seed=seed)
    steps = range(2 * one.steps)
    assert [one.batch(at).length for at in steps] == [other.batch(at).length for at in steps]


@given(
    parts=st.lists(
        st.tuples(st.integers(3, MAX_LENGTH), st.integers(3, MAX_LENGTH)), min_size=1, max_size=120
    ),
    scale=st.integers(1, 20),
    sequences=st.integers(2, 4),
)
@settings(deadline=None, max_examples=60)
def test_short_first_sequences_are_apart_if_that_saves_a_tenth(
    parts: list[tuple[int, int]], scale: int, sequences: int
) -> None:
    both = np.asarray([(max(3, first // scale), other) for first, other in parts], np.int32)
    lengths = both.max(axis=1).tolist()
    of_each = both[:, [0, *[1] * (sequences - 1)]]
    made = [plan(lengths, seed=seed, of_each=of_each) for seed in (0, 1)]
    together = plan(lengths)
    found = [made[0].batch(at) for at in range(made[0].steps)]
    assert [each.parts for each in found] == [
        made[1].batch(at).parts for at in range(made[1].steps)
    ]
    assert len({each.parts for each in found}) <= len(together.shapes) + 1
    if found[0].parts is None:
        assert made[0].mean_length == together.mean_length
        return
    for each in found:
        assert each.parts is not None
        assert (both[each.rows] <= each.parts).all()
    positions = [first + (sequences - 1) * other for first, other in (e.parts for e in found)]
    assert made[0].mean_length == pytest.approx(np.mean(positions) / sequences)
    assert made[0].mean_length <= 0.9 * together.mean_length


def test_rows_with_long_first_sequences_are_a_group_of_their_own() -> None:
    first = np.asarray([8] * 95 + [90] * 5)
    parts = np.stack([first, np.full(100, 96)], axis=1)
    made = plan([96] * 100, of_each=parts)
    assert made.shapes == {(96, (8, 96)), (96, (96, 96))}
    batches = [made.batch(at) for at in range(made.steps)]
    assert sum(batch.parts == (96, 96) for batch in batches) == 2
    assert sorted(np.concatenate([batch.rows for batch in batches])) == list(range(100))
    assert made.mean_length == (23 * (8 + 96) + 2 * 192) / 25 / 2


def test_first_sequences_that_are_apart_have_their_own_keys() -> None:
    batch = collate(
        Rows([6, 5], choices=3),
        np.asarray([1, 0]),
        batch_size=3,
        length=6,
        pad_id=9,
        parts=(6, 5),
    )
    assert batch["first_input_ids"].tolist() == [
        [1, 2, 3, 4, 5, 9],
        [1, 2, 3, 4, 5, 6],
        [9] * 6,
    ]
    assert batch["input_ids"][1].tolist() == [[1, 2, 3, 4, 5], [1, 2, 3, 4, 9]]
    assert batch["input_ids"].shape == (3, 2, 5)
    assert count_tokens(batch) == 6 + 5 + 4 + 5 + 4 + 3


def test_seeds_and_epochs_change_the_batches() -> None:
    lengths = [10] * 64
    first, other = plan(lengths), plan(lengths, seed=1)
    rows = [rows_of(first, at) for at in range(first.steps)]
    assert rows != [rows_of(other, at) for at in range(other.steps)]
    assert rows != [rows_of(first, first.steps + at) for at in range(first.steps)]
    assert rows == [rows_of(plan(lengths), at) for at in range(first.steps)]


def test_a_batch_is_found_without_earlier_ones() -> None:
    lengths = np.random.default_rng(0).integers(3, MAX_LENGTH, 200)
    walked, sought = plan(lengths.tolist()), plan(lengths.tolist())
    last = 3 * walked.steps - 1
    for step in range(last):
        walked.batch(step)
    assert rows_of(walked, last) == rows_of(sought, last)


def test_consecutive_batches_vary_in_length() -> None:
    lengths = np.random.default_rng(3).permutation(np.arange(3, 99).repeat(10))
    made = plan(lengths.tolist(), batch_size=16)
    found = np.asarray([made.batch(at).length for at in range(2 * made.steps)])
    stretches = np.convolve(found, np.full(8, 1 / 8), mode="valid")
    np.testing.assert_allclose(stretches, made.mean_length, rtol=0.2)


def test_longer_runs_use_more_shapes_to_save_padding() -> None:
    lengths = np.random.default_rng(0).integers(10, MAX_LENGTH, 400).tolist()
    short = plan(lengths, batch_size=16, cost=ShapeCost(100_000, 3))
    long = plan(lengths, batch_size=16, cost=ShapeCost(100_000, 1000))
    assert short.shapes == {(100, None)}
    assert 3 <= len(long.shapes) <= 8
    assert long.mean_length < short.mean_length == 100


def test_rows_are_padded_and_filler_has_no_weight() -> None:
    batch = collate(Rows([5, 3]), np.asarray([1, 0]), batch_size=4, length=8, pad_id=9)
    assert batch["input_ids"].tolist() == [
        [1, 2, 3, 9, 9, 9, 9, 9],
        [1, 2, 3, 4, 5, 9, 9, 9],
        [9] * 8,
        [9] * 8,
    ]
    assert batch["token_type_ids"][1].tolist() == [0, 0, 1, 1, 1, 0, 0, 0]
    assert batch["segment_ids"].sum(axis=1).tolist() == [3, 5, 0, 0]
    assert batch[WEIGHTS].tolist() == [1, 1, 0, 0]
    assert batch["label"].tolist() == [1, 0, 0, 0]


def test_piece_targets_are_padded_and_choices_get_an_axis() -> None:
    pieces, choices = Rows([3, 2], per_piece=True), Rows([6, 4], choices=3)
    batch = collate(pieces, np.asarray([0, 1]), batch_size=2, length=4, pad_id=0)
    assert batch["label"].tolist() == [[0, 0, 0, NO_LABEL], [1, 1, NO_LABEL, NO_LABEL]]
    batch = collate(choices, np.asarray([0, 1]), batch_size=2, length=8, pad_id=0)
    assert batch["input_ids"].shape == (2, 3, 8)
    assert batch["segment_ids"].sum(axis=-1).tolist() == [[6, 5, 4], [4, 3, 2]]


def batches(rows: Rows | None = None, **changes: Any) -> TrainBatches:
    values: dict[str, Any] = {"batch_size": 4, "max_length": MAX_LENGTH, "seed": 3, "pad_id": 0}
    split = rows or Rows([10, 20, 30, 40, 50, 60, 70, 80])
    return TrainBatches(split, cost=CHEAP, **(values | changes))


def test_hosts_share_the_batch_of_one_host() -> None:
    whole = batches().make(3)
    shares = [batches(share=HostShare(index, 2)).make(3) for index in range(2)]
    for name, array in whole.items():
        np.testing.assert_array_equal(np.concatenate([share[name] for share in shares]), array)


def test_a_batch_is_filled_to_a_multiple_of_devices() -> None:
    rows = Rows([10] * 32)
    plain = batches(rows, batch_size=16).make(0)
    filled = batches(rows, batch_size=16, unit=12).make(0)
    assert filled[WEIGHTS].tolist() == [1] * 16 + [0] * 8
    for name, array in plain.items():
        np.testing.assert_array_equal(filled[name][:16], array)


@pytest.mark.parametrize("choices", [1, 3])
def test_a_host_without_rows_makes_equal_shaped_filler(choices: int) -> None:
    rows = Rows([10], choices=choices)
    some, none = (batches(rows, share=HostShare(index, 2)).make(0) for index in range(2))
    assert some[WEIGHTS].tolist() == [1, 0]
    assert none[WEIGHTS].tolist() == [0, 0]
    assert {name: (array.shape, array.dtype) for name, array in some.items()} == {
        name: (array.shape, array.dtype) for name, array in none.items()
    }


def test_the_stream_begins_at_any_step() -> None:
    with batches().batches(first_step=5) as stream:
        found = [next(stream), next(stream)]
    for at, batch in enumerate(found, start=5):
        jax.tree.map(np.testing.assert_array_equal, batch, batches().make(at))


def test_a_position_needs_the_same_data_and_seed() -> None:
    position = batches().position(6)
    assert batches().check(position) == 6
    with refuses("resume.data_changed", place="seed", found=4):
        batches(seed=4).check(position)
    with refuses("resume.data_changed", place="max_length", found=90):
        batches(max_length=90).check(position)
