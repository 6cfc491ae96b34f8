"""Documents are dealt into shards: all of them, and never too few of a language."""

from collections import defaultdict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.pipelines.shards.document_buckets import bucket_ranges, deal


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 200), min_size=1),
    st.integers(1, 12),
)
def test_every_document_is_dealt_to_one_shard_and_small_languages_stay_together(
    sizes: dict[str, int], count: int
) -> None:
    count = min(count, max(sizes.values()))
    rng = np.random.default_rng(len(sizes))
    keys = {name: np.sort(rng.integers(0, 2**64, n, dtype=np.uint64)) for name, n in sizes.items()}
    dealt = deal(keys, count, tokens=sizes)
    assert all(dealt)
    found = defaultdict(list)
    for ranges in dealt:
        assert len({held.language for held in ranges}) == len(ranges)
        for held in ranges:
            found[held.language].append((held.first_key, held.last_key))
    for name, ranges in found.items():
        assert sorted(ranges) == bucket_ranges(keys[name], len(ranges))
        each = sizes[name] // len(ranges)
        assert each >= 16 or len(ranges) == 1 or sizes[name] == max(sizes.values())
    assert found.keys() == sizes.keys()
