"""Mixtures of datasets: exact shares of rows, epochs of each source, equal rows everywhere."""

import itertools
import math
from collections import Counter
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from bert_jax.data.host_share import HostShare
from bert_jax.data.loader.data_position import BatchSizes
from bert_jax.data.loader.loader import Loader, MixedDatasets
from bert_jax.data.loader.mixture import Mixture, SourceRow, stage_starts
from tests.data.memory_dataset import (
    Batch,
    MemoryDataset,
    assert_equal,
    join,
    make_loader,
    packed_loader,
    take,
)
from tests.project import refuses

LOADERS = [make_loader, packed_loader]
SIZES = (40, 23, 7)  # examples of each source
WEIGHTS = [0.5, 0.3, 0.2]

weights = st.lists(st.integers(0, 1000), min_size=1, max_size=9).filter(any)
settings = hypothesis.settings(deadline=None, max_examples=60)


class Numbered(MemoryDataset):
    """Examples whose first token says their source and their index."""

    def __init__(self, source: int, count: int) -> None:
        super().__init__(count, fingerprint=f"{source}" * 8)
        self._source = source

    def __getitem__(self, index: int) -> Any:
        example = super().__getitem__(index)
        example.input_ids[1] = 100 * (self._source + 1) + index
        return example


def mixed(make: Any, mixture: Mixture, **options: Any) -> Loader:
    datasets = [Numbered(source, count) for source, count in enumerate(SIZES)]
    return make(MixedDatasets(datasets, mixture), **options)


def examples_of(batch: Batch) -> list[list[tuple[int, int]]]:
    """Returns (source, index) of the examples in each row."""
    ids = batch["input_ids"].copy()
    at_row, at_slot = np.nonzero(batch["masked_lm_weights"])
    places = batch["masked_lm_positions"][at_row, at_slot]
    ids[at_row, places] = batch["masked_lm_ids"][at_row, at_slot]
    found = []
    for row, count in enumerate(batch["segment_ids"].max(axis=1)):
        numbers = ids[row, batch["cls_positions"][row, :count] + 1].tolist()
        found.append([divmod(number - 100, 100) for number in numbers])
    return found


@st.composite
def mixtures(draw: Any) -> tuple[Mixture, int, int]:
    """Returns a mixture, with constant or changing weights, its sources and its rows."""
    first = draw(weights)
    steps, size = draw(st.integers(1, 40)), draw(st.integers(1, 9))
    ramp = ((draw(st.integers(1, 5)), 1),) if draw(st.booleans()) else ()
    sizes = BatchSizes(size, ramp)
    rows = sizes.rows(steps).start
    if not draw(st.booleans()):
        return Mixture(first), len(first), rows
    last = draw(st.permutations(first))
    return Mixture(first, last, stage_starts(steps, sizes)), len(first), rows


@settings
@hypothesis.given(mixtures())
def test_every_row_has_one_source_and_every_source_all_its_rows(drawn: Any) -> None:
    mixture, sources, rows = drawn
    before = [0] * sources
    for row in range(rows):
        source, own = mixture.at(row)
        assert own == before[source]
        before[source] += 1
        assert mixture.counts(row + 1) == before
        assert sum(before) == row + 1


@settings
@hypothesis.given(weights, st.integers(0, 10**12))
def test_counts_are_the_shares_to_a_few_rows(shares: list[int], rows: int) -> None:
    counts = Mixture(shares).counts(rows)
    for count, share in zip(counts, shares, strict=True):
        expected = rows * share / sum(shares)
        # Far within the binomial limits of random sources, which grow with the rows.
        assert abs(count - expected) <= len(shares) / 2 + rows * 2**-50
        assert share or not count


def test_windows_of_rows_have_the_shares_within_binomial_limits() -> None:
    mixture = Mixture(WEIGHTS)
    for start, length in itertools.product((0, 12_345, 10**9 + 7), (50, 1000)):
        found = Counter(mixture.at(row).source for row in range(start, start + length))
        for source, share in enumerate(WEIGHTS):
            sigma = math.sqrt(length * share * (1 - share))
            assert abs(found[source] - length * share) < min(3 * sigma, 3)


def test_changing_weights_are_a_line_from_the_first_to_the_last_step() -> None:
    steps, size = 5000, 16
    mixture = Mixture([1, 0], [0.2, 0.8], stage_starts(steps, BatchSizes(size)))
    for at in (0, 0.25, 0.5, 0.75, 0.99):
        window = range(int(at * steps) * size, int((at + 0.01) * steps) * size)
        share = sum(mixture.at(row).source for row in window) / len(window)
        assert share == pytest.approx(0.8 * (at + 0.005), abs=0.005)
    total = steps * size
    assert mixture.counts(total)[1] == pytest.approx(0.4 * total, abs=0.001 * total)
    assert mixture.at(0) == SourceRow(0, 0)


def test_a_row_far_away_costs_as_few_operations_as_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = 10**9
    mixture = Mixture([3, 2, 1], [1, 2, 3], stage_starts(steps, BatchSizes(256)))
    calls = Counter[int]()
    split = type(mixture._stages[0][0])
    quota_of = split.quota_of

    def counted(self: Any, rows: int) -> int:
        calls[row] += 1
        return quota_of(self, rows)

    monkeypatch.setattr(split, "quota_of", counted)
    for row in (0, 256 * 10**8, 256 * steps - 1, 10**15):
        mixture.at(row)
    assert max(calls.values()) <= 4  # two for each split


@pytest.mark.parametrize("make", LOADERS)
def test_each_source_goes_through_its_own_epochs(make: Any) -> None:
    loader = mixed(make, Mixture(WEIGHTS), batch_size=8)
    rows = [row for batch in take(loader, 60) for row in examples_of(batch)]
    for source, epoch in enumerate(loader.rows_by_dataset):
        orders = set[tuple[int, ...]]()
        own = [[index for _, index in row] for row in rows if row[0][0] == source]
        assert all({each for each, _ in row} == {row[0][0]} for row in rows)
        assert len(own) == pytest.approx(WEIGHTS[source] * len(rows), abs=1.5)
        for start in range(0, len(own) // epoch * epoch, epoch):
            found = list(itertools.chain.from_iterable(own[start : start + epoch]))
            assert sorted(found) == list(range(SIZES[source]))
            orders.add(tuple(found))
        assert len(orders) > 1
        assert source or len(orders) == len(own) // epoch  # few packed rows have few orders


@pytest.mark.parametrize("make", LOADERS)
@pytest.mark.parametrize("until", [None, [0.1, 0.1, 0.8]])
def test_hosts_batch_sizes_and_seeks_give_the_same_rows(make: Any, until: Any) -> None:
    starts = [0] if until is None else stage_starts(12, BatchSizes(8))
    mixture = Mixture(WEIGHTS, until, starts)
    whole = take(mixed(make, mixture, batch_size=8), 12)
    for hosts in (2, 4):
        shares = [
            take(mixed(make, mixture, batch_size=8, share=HostShare(at, hosts)), 12)
            for at in range(hosts)
        ]
        for at, batch in enumerate(whole):
            assert_equal(batch, join([share[at] for share in shares]))
    ramp = mixed(make, mixture, batch_size=8, ramp=((4, 2), (2, 4)))
    assert_equal(join(whole[:6]), join(take(ramp, 10)))
    for step in (11, 3):
        assert_equal(whole[step], take(mixed(make, mixture, batch_size=8), 1, first_step=step)[0])
    take(mixed(make, mixture, batch_size=8), 1, first_step=10**9)


def test_sources_of_equal_size_have_other_orders_and_masks() -> None:
    datasets = [MemoryDataset(40, fingerprint=name * 8) for name in "ab"]
    loader = make_loader(MixedDatasets(datasets, Mixture([1, 1])), batch_size=80)  # type: ignore[arg-type]
    (batch,) = take(loader, 1)
    first, second = ({name: value[start::2] for name, value in batch.items()} for start in (0, 1))
    orders = [[index for row in examples_of(half) for _, index in row] for half in (first, second)]
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != orders[1]
    masks = [
        dict(zip(order, half["masked_lm_positions"].tolist(), strict=True))
        for order, half in zip(orders, (first, second), strict=True)
    ]
    assert masks[0] != masks[1]


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("weights", Mixture([0.5, 0.25, 0.25])),
        ("stages", Mixture(WEIGHTS, WEIGHTS, stage_starts(12, BatchSizes(8)))),
    ],
)
def test_a_position_of_another_mixture_is_refused_or_starts_again(
    name: str, other: Mixture
) -> None:
    position = mixed(make_loader, Mixture(WEIGHTS), batch_size=8).position(6)
    assert mixed(make_loader, Mixture(WEIGHTS), batch_size=12).check(position) == 4
    loader = mixed(make_loader, other, batch_size=8)
    differing = position.differences(loader.position(0).fingerprint)
    assert name in differing
    with refuses("resume.data_changed", place=min(differing)):
        loader.check(position)
    assert loader.resume_position(position).example_index == 0
