import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.pipelines.tokenised.documents import (
    TokenisedDocuments,
    concatenate,
    join_key,
    load_high_keys,
)
from tests.corpus import from_lists

Lists = list[list[list[int]]]
DOCUMENTS = st.lists(
    st.lists(st.lists(st.integers(0, 65535), min_size=1, max_size=5), min_size=1, max_size=4),
    max_size=6,
)


def to_lists(documents: TokenisedDocuments) -> Lists:
    """The inverse of `from_lists`."""
    bounds, starts = documents.sentence_starts, documents.document_starts
    return [
        [
            documents.tokens[bounds[s] : bounds[s + 1]].tolist()
            for s in range(starts[d], starts[d + 1])
        ]
        for d in range(len(documents))
    ]


def laid_out(lists: Lists, first_key: int = 0) -> TokenisedDocuments:
    keys = range(first_key, first_key + len(lists))
    return from_lists(keys, lists, np.dtype(np.uint16))


@settings(deadline=None, max_examples=100)
@given(DOCUMENTS, DOCUMENTS, st.data())
def test_documents_survive_laying_out_joining_and_choosing(
    first: Lists, second: Lists, data: st.DataObject
) -> None:
    both = concatenate([laid_out(first), laid_out(second, len(first))])
    lists = first + second
    assert to_lists(both) == lists
    chosen = data.draw(
        st.lists(st.integers(0, len(lists) - 1), max_size=8) if lists else st.just([])
    )
    selected = both.select(chosen)
    assert to_lists(selected) == [lists[i] for i in chosen]
    assert selected.keys[:, 1].tolist() == chosen


@settings(deadline=None, max_examples=100)
@given(
    DOCUMENTS,
    st.lists(st.integers(0, 20), min_size=6, max_size=6),
    st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted),
)
def test_a_range_of_keys_on_disk_is_what_the_same_range_of_all_is(
    lists: Lists, high: list[int], bounds: list[int]
) -> None:
    keys = sorted(half << 64 | low for low, half in enumerate(high[: len(lists)]))
    first, last = bounds
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        from_lists(keys, lists, np.dtype(np.uint16)).save(run)
        found = TokenisedDocuments.load(run, first_key=first, last_key=last)
        halves = load_high_keys([run, run])
    chosen = [place for place, key in enumerate(keys) if first <= key >> 64 <= last]
    assert [join_key(key) for key in found.keys] == [keys[place] for place in chosen]
    assert to_lists(found) == [lists[place] for place in chosen]
    assert halves.tolist() == sorted(2 * [key >> 64 for key in keys])
