import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data.dataset.recipe import PairingSection
from bert_jax.data.rng import stream
from bert_jax.pipelines.pairing.sentence_pairs import pair_document, truncate
from bert_jax.pipelines.pairing.spans import Pair, SentenceOffsets
from bert_jax.pipelines.tokenised.documents import TokenisedDocuments
from tests.data.distributions import same_distribution
from tests.data.numbered import LENGTHS, numbered, pairs_of, token_owner
from tests.pipelines.reference_pairing import reference_pass, reference_truncate


def passes(
    documents: TokenisedDocuments, section: PairingSection, *, seed: int, count: int
) -> list[list[Pair]]:
    """``count`` passes over every document."""
    offsets = SentenceOffsets(
        documents.sentence_starts.tolist(), documents.document_starts.tolist()
    )
    return [
        list(pair_document(offsets, document, section, rng=stream(seed, "test", number, document)))
        for number in range(count)
        for document in range(len(documents))
    ]


@settings(deadline=None, max_examples=150)
@given(LENGTHS, st.integers(5, 60), st.integers(0, 2**32))
def test_the_label_tells_the_truth(
    lengths: list[list[int]], max_seq_length: int, seed: int
) -> None:
    documents = numbered(lengths)
    owner = token_owner(documents)
    section = PairingSection(max_seq_length=max_seq_length, dupe_factor=3)
    for pair in pairs_of(documents, section, seed=seed):
        first = set(owner[pair.first_start : pair.first_stop].tolist())
        second = set(owner[pair.second_start : pair.second_stop].tolist())
        assert len(first) == len(second) == 1
        assert (first != second) == bool(pair.next_sentence_label)
        assert pair.length <= max_seq_length
        assert pair.first_length == pair.first_stop - pair.first_start + 2
        if not pair.next_sentence_label:
            gap = pair.second_start - pair.first_stop
            # Between A and its next there is nothing but what truncation took.
            assert gap == 0 or (gap > 0 and pair.length == max_seq_length)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.integers(1, 80), min_size=2, max_size=5),
    st.integers(5, 40),
    st.floats(0, 1),
    st.integers(0, 2**32),
)
def test_every_sentence_is_used_and_displaced_ones_come_back(
    sizes: list[int], max_seq_length: int, short: float, seed: int
) -> None:
    # Sentences of one token reach the target exactly, so nothing is truncated.
    documents = numbered([[1] * size for size in sizes])
    section = PairingSection(max_seq_length=max_seq_length, short_seq_prob=short)
    starts = documents.document_starts
    for number, pairs in enumerate(passes(documents, section, seed=seed, count=2)):
        document = number % len(documents)
        position = starts[document]
        for pair in pairs:
            assert pair.first_start == position
            position = pair.first_stop if pair.next_sentence_label else pair.second_stop
        assert position == starts[document + 1]


def test_truncation_keeps_the_lengths_that_the_release_keeps() -> None:
    rng = stream(0, "lengths")
    reference = random.Random(0)
    for length_a in range(1, 13):
        for length_b in range(1, 13):
            for room in range(2, 26):
                a, b = list(range(length_a)), list(range(length_b))
                reference_truncate(a, b, room, reference)
                start_a, stop_a, start_b, stop_b = truncate(
                    (0, length_a), (0, length_b), max_tokens=room, rng=rng
                )
                assert (stop_a - start_a, stop_b - start_b) == (len(a), len(b))
                assert 0 <= start_a <= stop_a <= length_a
                assert 0 <= start_b <= stop_b <= length_b


def corpus_lengths() -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [rng.integers(1, 28, rng.integers(1, 25)).tolist() for _ in range(25)]


def reference_pairs(documents: TokenisedDocuments, *, count: int, seed: int) -> list[list[Pair]]:
    bounds, starts = documents.sentence_starts, documents.document_starts
    lists = [
        [list(range(bounds[s], bounds[s + 1])) for s in range(starts[d], starts[d + 1])]
        for d in range(len(documents))
    ]
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        for which in range(len(lists)):
            examples = reference_pass(lists, which, max_seq_length=48, short_seq_prob=0.1, rng=rng)
            found.append([Pair(a[0], a[-1] + 1, b[0], b[-1] + 1, y) for a, b, y in examples])
    return found


def test_pairs_are_distributed_as_the_release_distributes_them() -> None:
    documents = numbered(corpus_lengths())
    bounds = documents.sentence_starts
    section = PairingSection(max_seq_length=48, short_seq_prob=0.1)
    ours = passes(documents, section, seed=3, count=240)
    theirs = reference_pairs(documents, count=240, seed=4)

    def front_cut(start: int) -> int:
        return start - int(bounds[np.searchsorted(bounds, start, side="right") - 1])

    def back_cut(stop: int) -> int:
        return int(bounds[np.searchsorted(bounds, stop, side="left")]) - stop

    figures = {
        "total length": lambda p: p.length,
        "length of A": lambda p: p.first_length,
        "length of B": lambda p: p.second_stop - p.second_start,
        "label": lambda p: p.next_sentence_label,
        "label and length of A": lambda p: p.next_sentence_label * 100 + p.first_length,
        "start of B": lambda p: p.second_start,
        "front cut of A": lambda p: front_cut(p.first_start),
        "front cut of B": lambda p: front_cut(p.second_start),
        "back cut of A": lambda p: back_cut(p.first_stop),
        "back cut of B": lambda p: back_cut(p.second_stop),
    }
    # Examples of one pass share its target, so one per pass is looked at: they are independent.
    for name, figure in figures.items():
        for place in (0, -1):
            p = same_distribution(
                [figure(pairs[place]) for pairs in ours], [figure(pairs[place]) for pairs in theirs]
            )
            assert p > 1e-3, (name, place, p)
    assert same_distribution([len(p) for p in ours], [len(p) for p in theirs]) > 1e-3
