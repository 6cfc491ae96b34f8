"""Tests of documents on disk, their division into shards, and their statistics."""

import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data.dataset.provenance import read_provenance
from bert_jax.data.dataset.reader import open_dataset
from bert_jax.data.rng import mix64
from bert_jax.pipelines.examples import make_examples
from bert_jax.pipelines.pairing import Pair
from bert_jax.pipelines.shards import write_shard
from bert_jax.pipelines.shards.splits import bucket_ranges, deal
from bert_jax.pipelines.shards.write_shard import (
    SKETCH,
    count_distinct,
    count_pairs,
    sentence_hashes,
    sketch,
)
from bert_jax.pipelines.tokenised.documents import (
    TokenisedDocuments,
    concatenate,
    join_key,
    load_high_keys,
)
from bert_jax.text import load_tokenizer
from tests.corpus import from_lists, make_dataset, section, sentences


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 200), min_size=1), st.integers(1, 12)
)
def test_small_languages_stay_in_one_shard(sizes: dict[str, int], count: int) -> None:
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


SENTENCES = st.lists(st.integers(0, 3), min_size=1, max_size=4)
DOCUMENTS = st.lists(st.lists(SENTENCES, min_size=1, max_size=5), min_size=1, max_size=6)


@given(documents=DOCUMENTS, chunk=st.integers(1, 9))
@settings(deadline=None, max_examples=60)
def test_equal_hashes_mean_equal_tokens(documents: list[list[list[int]]], chunk: int) -> None:
    made = from_lists(range(len(documents)), documents, np.dtype(np.uint16))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write_shard, "_CHUNK", chunk)
        hashes = sentence_hashes(made).tolist()
    spelled = [tuple(sentence) for document in documents for sentence in document]
    assert len(hashes) == len(spelled)
    assert len(set(hashes)) == len(set(spelled)) == len(set(zip(hashes, spelled, strict=True)))


def test_a_dataset_counts_pairs_and_repeated_sentences(tmp_path: Path) -> None:
    make_dataset(tmp_path)
    with (tmp_path / "text0.txt").open("a") as file:
        file.write("\n" + "\n".join(["the old mill ."] * 10) + "\n")
    made = make_examples(section(tmp_path, output=str(tmp_path / "again")))
    assert read_provenance(tmp_path / "again") == made
    for name, split in made.splits.items():
        dataset = open_dataset(tmp_path / "again", name)
        labels = Counter(e.next_sentence_label for e in dataset.__getitems__(range(len(dataset))))
        assert split.pairs is not None
        # Random next sentences come from other documents.
        assert split.pairs.same_document == (labels[0], 0)
        assert split.pairs.other_document == (0, labels[1])
        assert labels[1] > 0
    tokenizer = load_tokenizer(tmp_path / "tokenizer")
    made = make_examples(section(tmp_path, output=str(tmp_path / "one"), validation_fraction=0))
    texts = [line for d in range(60) for line in sentences(d)] + ["the old mill ."] * 10
    different = {tuple(ids) for ids in tokenizer.encode_batch(texts)}
    train = made.splits["train"]
    assert train.sentences == len(texts)
    assert train.repeated_sentences == pytest.approx(1 - len(different) / len(texts))


def test_pairs_are_counted_by_the_documents_of_their_spans() -> None:
    documents = from_lists(range(3), [[[1, 2], [3]], [[4, 5, 6]], [[7], [8]]], np.dtype(np.uint16))
    pairs = [
        Pair(0, 2, 2, 3, 0),  # both spans in document 0
        Pair(1, 2, 2, 3, 1),  # both spans in document 0, labelled random
        Pair(6, 7, 3, 4, 1),
        Pair(6, 7, 3, 4, 1),
    ]
    found = count_pairs(documents, np.array(pairs))
    assert (found.same_document, found.other_document) == ((1, 1), (0, 2))


def test_distinct_sentences_are_counted_exactly_if_few() -> None:
    few, many = (mix64(np.arange(n, dtype=np.uint64)) for n in (SKETCH - 1, 500_000))
    assert count_distinct(sketch(np.repeat(few, 3))) == SKETCH - 1
    joined = np.zeros(0, np.uint64)
    for part in np.split(np.concatenate([many, many[:250_000]]), 30):
        joined = sketch(np.concatenate([joined, sketch(part)]))
    assert count_distinct(joined) == pytest.approx(500_000, rel=0.03)


Lists = list[list[list[int]]]
ALL_DOCUMENTS = st.lists(
    st.lists(st.lists(st.integers(0, 65535), min_size=1, max_size=5), min_size=1, max_size=4),
    max_size=6,
)


def to_lists(documents: TokenisedDocuments) -> Lists:
    """Returns documents as lists: the inverse of `from_lists`."""
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
@given(ALL_DOCUMENTS, ALL_DOCUMENTS, st.data())
def test_documents_survive_flattening_joining_and_selecting(
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
    ALL_DOCUMENTS,
    st.lists(st.integers(0, 20), min_size=6, max_size=6),
    st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted),
)
def test_a_key_range_on_disk_equals_the_one_in_memory(
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
