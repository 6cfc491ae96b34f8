"""The loader: order of rows, shares of hosts, and resuming."""

import dataclasses
import json

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from bert_jax.data.host_share import HostShare
from bert_jax.data.loader.data_position import DataPosition
from bert_jax.data.loader.loader import evaluation_batches
from bert_jax.data.loader.section import LoaderSection
from bert_jax.data.rng import stream
from tests.data.memory_dataset import (
    MAX_EXAMPLES,
    SPECIAL,
    Batch,
    MemoryDataset,
    assert_equal,
    join,
    make_loader,
    packed_loader,
    row_maker,
    take,
)
from tests.project import refuses

settings = hypothesis.settings(deadline=None, max_examples=6)

# Loaders with one example per row, and with several.
LOADERS = [make_loader, packed_loader]


def rows_of(batch: Batch) -> list[tuple[int, ...]]:
    """Returns the dataset indices of the examples in each row."""
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


def indices_of(batch: Batch) -> list[int]:
    return [index for row in rows_of(batch) for index in row]


@pytest.mark.parametrize("make", LOADERS)
@settings
@hypothesis.given(st.integers(1, 60), st.integers(0, 2**70), st.integers(1, 9))
def test_every_epoch_has_every_example_once(make, count, seed, batch_size):
    loader = make(MemoryDataset(count), batch_size=batch_size, seed=seed)
    epoch = loader.rows_per_epoch
    seen = join(take(loader, -(-3 * epoch // batch_size)))
    for start in range(0, 3 * epoch, epoch):
        rows = {name: value[start : start + epoch] for name, value in seen.items()}
        assert sorted(indices_of(rows)) == list(range(count))


def test_packing_differs_by_epoch_phase_and_seed():
    def epochs(count: int, **kwargs) -> list[list[tuple[int, ...]]]:
        loader = packed_loader(MemoryDataset(400), batch_size=1, **kwargs)
        rows = take(loader, count * loader.rows_per_epoch)
        return [
            rows_of(join(rows[start : start + loader.rows_per_epoch]))
            for start in range(0, len(rows), loader.rows_per_epoch)
        ]

    found = [*epochs(3), *epochs(1, phase=1), *epochs(1, seed=8)]
    for at, epoch in enumerate(found):
        shared = [row for row in epoch if len(row) > 1]
        assert len(shared) > 100
        for other in found[:at]:
            assert len({*shared} & {*other}) < len(shared) / 4
            assert [len(row) for row in epoch] != [len(row) for row in other]


def test_packing_does_not_change_an_examples_masks():
    dataset, single, found = MemoryDataset(50), row_maker(), 0
    loader = packed_loader(dataset, batch_size=1)
    for row, batch in enumerate(take(loader, 3 * loader.rows_per_epoch)):
        for k, index in enumerate(indices_of(batch)):
            stream_ = stream(7, "mask", 0, row // loader.rows_per_epoch, index)
            alone = single(dataset[index], stream_)
            places = batch["segment_ids"][0] == k + 1
            seen = alone["input_ids"][alone["segment_ids"] == 1]
            np.testing.assert_array_equal(batch["input_ids"][0][places], seen)
            found += int((seen == SPECIAL.mask).sum())
    assert found > 100


def test_phases_over_one_dataset_differ_in_order_and_masks():
    dataset, batches = MemoryDataset(40), []
    for phase in (0, 1):
        loader = make_loader(dataset, batch_size=40, phase=phase)
        batches += take(loader, 1)
    first, second = batches
    assert indices_of(first) != indices_of(second)
    positions = [
        dict(zip(indices_of(batch), batch["masked_lm_positions"].tolist(), strict=True))
        for batch in batches
    ]
    assert positions[0] != positions[1]


@pytest.mark.parametrize("make", LOADERS)
@settings
@hypothesis.given(
    st.integers(1, 50), st.integers(0, 12), st.sampled_from([1, 2, 3]), st.integers(1, 4)
)
def test_hosts_share_one_hosts_batch(make, count, step, hosts, share):
    dataset = MemoryDataset(count)
    batch_size = hosts * share
    loaders = [
        make(dataset, batch_size=batch_size, share=HostShare(host, hosts)) for host in range(hosts)
    ]
    shares = [take(loader, 2, first_step=step) for loader in loaders]
    whole = take(make(dataset, batch_size=batch_size), 2, first_step=step)
    for at, batch in enumerate(whole):
        assert_equal(batch, join([of_host[at] for of_host in shares]))


@pytest.mark.parametrize("make", LOADERS)
@settings
@hypothesis.given(st.integers(1, 50), st.integers(1, 6), st.integers(1, 6))
def test_rows_do_not_depend_on_the_batch_size(make, count, one, other):
    dataset = MemoryDataset(count)
    left = join(take(make(dataset, batch_size=one), 2 * other))
    right = join(take(make(dataset, batch_size=other), 2 * one))
    assert_equal(left, right)


@pytest.mark.parametrize("make", LOADERS)
def test_seeking_equals_iterating_and_is_fast(make):
    loader = make(MemoryDataset(100), batch_size=8)
    walked = take(loader, 20)
    for step in (19, 4, 5, 1):
        assert_equal(walked[step], take(loader, 1, first_step=step)[0])
    take(loader, 1, first_step=10**9)  # if seeking read all rows, this would never end


@settings
@hypothesis.given(
    st.integers(1, 30), st.integers(1, 8), st.sampled_from([1, 2]), st.none() | st.integers(1, 40)
)
def test_evaluation_counts_every_example_once(count, share, hosts, limit):
    dataset, make = MemoryDataset(count), row_maker()
    total = min(count, limit or count)
    options = {"batch_size": share * hosts, "seed": 3, "limit": limit}
    by_host = [
        list(evaluation_batches(dataset, make, share=HostShare(host, hosts), **options))
        for host in range(hosts)
    ]
    assert {len(batches) for batches in by_host} == {-(-total // (share * hosts))}
    rows = join([join(list(step)) for step in zip(*by_host, strict=True)])
    for index in range(total):
        row = {name: value[index] for name, value in rows.items()}
        assert_equal(row, make(dataset[index], stream(3, "evaluate", index)))
    for value in rows.values():
        assert not value[total:].any()


def test_a_position_holds_for_other_hosts_and_batch_sizes():
    dataset = MemoryDataset(37)
    position = make_loader(dataset, batch_size=8).position(6)
    assert position.example_index == 48
    restored = DataPosition.model_validate_json(json.dumps(position.model_dump(mode="json")))
    assert restored == position
    section, share = LoaderSection(workers=3), HostShare(1, 2)
    assert make_loader(dataset, batch_size=8, share=share, section=section).check(restored) == 6
    assert make_loader(dataset, batch_size=12).check(position) == 4
    with refuses("resume.batch_size", place="batch_size", found=7, rows=48):
        make_loader(dataset, batch_size=7).check(position)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("dataset", {"dataset": MemoryDataset(37, fingerprint="b" * 8)}),
        ("seed", {"seed": 8}),
        ("masking.rate", {"transform": row_maker(rate=0.2, max_predictions=5)}),
        ("masking.unit", {"transform": row_maker(unit="whole_word")}),
        ("masking.max_predictions", {"transform": row_maker(max_predictions=3)}),
        ("packing", {"transform": dataclasses.replace(row_maker(), max_examples=MAX_EXAMPLES)}),
    ],
)
def test_another_runs_position_names_the_differing_field(name, change):
    position = make_loader(MemoryDataset(37), batch_size=8).position(6)
    arguments = {"dataset": MemoryDataset(37), "seed": 7, **change}
    with refuses("resume.data_changed", place=name):
        make_loader(batch_size=8, **arguments).check(position)


@pytest.mark.parametrize("packed", [False, True])
def test_a_falling_masking_rate_depends_on_the_step_of_the_run_alone(packed):
    first, last = 0.512345, 0.1  # no number of tokens times a rate is close to k + 1/2
    transform, dataset = row_maker(rate=first, final_rate=last), MemoryDataset(60)
    if packed:
        transform = dataclasses.replace(transform, max_examples=MAX_EXAMPLES)
    rows = 12

    def batches(run: range, *, first_step: int, count: int = 1, **changes) -> list[Batch]:
        options = {"batch_size": rows, "transform": transform, **changes}
        return take(make_loader(dataset, **options), count, first_step=first_step, run=run)

    whole = batches(range(40), first_step=0, count=45)  # the loader reads ahead of the last step
    for step, batch in enumerate(whole):
        rate = first - (first - last) * min(step, 40) / 40
        expected = sum(
            round(int(length) * rate)
            for row, count in zip(batch["segment_ids"], batch["segment_ids"].max(1), strict=True)
            for length in np.bincount(row, minlength=count + 1)[1:]
        )
        assert batch["masked_lm_weights"].sum() == expected
        assert batch["masked_lm_ids"].shape == whole[0]["masked_lm_ids"].shape

    # Resuming, hosts and a new batch size do not change the rate of a step.
    (resumed,) = batches(range(17, 40), first_step=17)
    assert_equal(resumed, whole[17])
    hosts = [
        batches(range(17, 40), first_step=17, share=HostShare(index, 3))[0] for index in range(3)
    ]
    assert_equal(join(hosts), whole[17])
    halves = [  # steps 17 and 18 with half of the rows each
        batches(range(17, 40), first_step=34, count=2, batch_size=rows // 2)[at] for at in (0, 1)
    ]
    assert indices_of(join(halves)) == indices_of(whole[17])
    assert_equal(halves[0], {name: value[: rows // 2] for name, value in whole[17].items()})
    # A rollback skipped the data of 3 steps.
    (later,) = batches(range(17, 40), first_step=20)
    assert indices_of(later) == indices_of(whole[20])
    assert later["masked_lm_weights"].sum() > whole[20]["masked_lm_weights"].sum()


@pytest.mark.parametrize("make", LOADERS)
def test_a_batch_ramp_changes_no_row(make):
    """Batches of 2, 2, 2, 4, 4, and then 8 rows are the rows of batches of 8."""
    dataset, sizes = MemoryDataset(50), [2, 2, 2, 4, 4, 8, 8]
    ramp = make(dataset, batch_size=8, ramp=((3, 2), (2, 4)))
    plain = make(dataset, batch_size=1)
    batches, starts = take(ramp, len(sizes)), [sum(sizes[:at]) for at in range(len(sizes) + 1)]
    assert [len(batch["input_ids"]) for batch in batches] == sizes
    assert_equal(join(batches), join(take(plain, sum(sizes))))
    for step, start in enumerate(starts):
        position = ramp.position(step)
        assert (position.example_index, ramp.check(position)) == (start, step)
        if step < len(sizes):
            assert_equal(take(ramp, 1, first_step=step)[0], batches[step])
    # Between the ends of batches, another ramp resumes at the next end.
    with refuses("resume.batch_size", rows=7):
        ramp.check(plain.position(7))
    assert [ramp.resume_position(plain.position(rows)).example_index for rows in (5, 7, 15)] == [
        6,
        10,
        22,
    ]
    hosts = [
        take(make(dataset, batch_size=8, ramp=((3, 2), (2, 4)), share=HostShare(at, 2)), 6)[-1]
        for at in range(2)
    ]
    assert_equal(join(hosts), batches[5])


def test_an_indivisible_batch_or_empty_split_is_refused():
    with refuses("loader.batch_size", place="batch_size", found=9, hosts=2):
        make_loader(MemoryDataset(10), batch_size=9, share=HostShare(0, 2))
    with refuses("dataset.empty", place="dataset"):
        make_loader(MemoryDataset(0), batch_size=2)


def test_order_and_masks_depend_on_seed_epoch_and_example():
    dataset, make, orders = MemoryDataset(40), row_maker(), []
    for seed in (3, 4):
        loader = make_loader(dataset, batch_size=40, seed=seed)
        for epoch, batch in enumerate(take(loader, 3)):
            orders.append(tuple(indices_of(batch)))
            for at, index in enumerate(orders[-1]):
                row = make(dataset[index], stream(seed, "mask", 0, epoch, index))
                assert_equal({name: value[at] for name, value in batch.items()}, row)
    assert len({*orders, tuple(range(40))}) == 7
