"""The loader of packed rows: every example once an epoch, O(1) seeking, on any machines."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from bert_jax.data.rng import stream
from bert_jax.errors import UserError
from tests.data.memory_dataset import (
    MAX_EXAMPLES,
    SPECIAL,
    Batch,
    MemoryDataset,
    make_loader,
    packed_loader,
    row_maker,
    take,
)

settings = hypothesis.settings(deadline=None, max_examples=12)


def rows_of(batch: Batch) -> list[tuple[int, ...]]:
    """The dataset's indices of the examples in each row, masks undone."""
    ids = batch["input_ids"].copy()
    at_row, at_slot = np.nonzero(batch["masked_lm_weights"])
    ids[at_row, batch["masked_lm_positions"][at_row, at_slot]] = batch["masked_lm_ids"][
        at_row, at_slot
    ]
    examples = batch["segment_ids"].max(axis=1)
    return [
        tuple((ids[row, batch["cls_positions"][row, :count] + 1] - 100).tolist())
        for row, count in enumerate(examples)
    ]


def epochs_of(dataset: MemoryDataset, count: int, **kwargs) -> list[list[tuple[int, ...]]]:
    rows = packed_loader(dataset, batch_size=1, **kwargs).rows_per_epoch
    return [
        rows_of(batch) for batch in take(packed_loader(dataset, batch_size=rows, **kwargs), count)
    ]


@settings
@hypothesis.given(st.integers(1, 120), st.integers(0, 2**70))
def test_every_epoch_is_every_example_once(count, seed):
    for rows in epochs_of(MemoryDataset(count), 3, seed=seed):
        assert sorted(index for row in rows for index in row) == list(range(count))


def test_rows_come_in_another_order_and_company_each_epoch_phase_and_seed():
    dataset = MemoryDataset(400)
    epochs = [
        *epochs_of(dataset, 3),
        *epochs_of(dataset, 1, phase=1),
        *epochs_of(dataset, 1, seed=8),
    ]
    for at, epoch in enumerate(epochs):
        shared = [row for row in epoch if len(row) > 1]
        assert len(shared) > 100
        for other in epochs[:at]:
            assert len({*shared} & {*other}) < len(shared) / 4
            assert [len(row) for row in epoch] != [len(row) for row in other]


def test_an_example_is_masked_as_it_is_without_packing():
    dataset, single, found = MemoryDataset(50), row_maker(), 0
    transform = single.packed(MAX_EXAMPLES)
    rows = packed_loader(dataset, batch_size=1).rows_per_epoch
    loader = packed_loader(dataset, batch_size=rows, transform=transform)
    for epoch, batch in enumerate(take(loader, 3)):
        for at, indices in enumerate(rows_of(batch)):
            for k, index in enumerate(indices):
                alone = single(dataset[index], stream(7, "mask", 0, epoch, index))
                places = batch["segment_ids"][at] == k + 1
                seen = alone["input_ids"][alone["segment_ids"] == 1]
                np.testing.assert_array_equal(batch["input_ids"][at][places], seen)
                found += int((seen == SPECIAL.mask).sum())
    assert found > 100


def test_a_position_is_good_for_the_same_packing_only():
    dataset = MemoryDataset(37)
    position = packed_loader(dataset, batch_size=8).position(6)
    assert packed_loader(dataset, batch_size=12).check(position) == 4
    with pytest.raises(UserError, match=r'^packing: found "none", but .* "first_fit_decreasing"'):
        make_loader(dataset, batch_size=8).check(position)
    other = row_maker().packed(MAX_EXAMPLES + 1)
    with pytest.raises(UserError, match=r"^packing.max_examples: found 5, but .* 4; allowed"):
        packed_loader(dataset, batch_size=8, transform=other).check(position)
