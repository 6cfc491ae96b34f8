"""Tests pairs and full sentences against reference implementations of the published methods."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bert_jax.data.dataset.provenance import PairingKind, PairingSection
from bert_jax.data.rng import stream
from bert_jax.pipelines.pairing import Pair, SentenceOffsets, pair_document, truncate
from bert_jax.pipelines.tokenised.documents import TokenisedDocuments
from bert_jax.validation import validate
from tests.data.distributions import same_distribution
from tests.data.numbered import LENGTHS, numbered, pairs_of, singles_of, token_owner
from tests.pipelines.reference_pairing import reference_pass, reference_truncate
from tests.project import refuses


def passes(
    documents: TokenisedDocuments, section: PairingSection, *, seed: int, count: int
) -> list[list[Pair]]:
    """Returns the pairs of ``count`` passes over every document."""
    offsets = SentenceOffsets(
        documents.sentence_starts.tolist(), documents.document_starts.tolist()
    )
    return [
        list(pair_document(offsets, document, section, rng=stream(seed, "test", number, document)))
        for number in range(count)
        for document in range(len(documents))
    ]


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from(["nsp", "sop"]),
    LENGTHS,
    st.integers(5, 60),
    st.floats(0, 1),
    st.integers(0, 2**32),
)
def test_the_label_is_correct(
    kind: PairingKind, lengths: list[list[int]], max_seq_length: int, short: float, seed: int
) -> None:
    documents = numbered(lengths)
    owner = token_owner(documents)
    section = PairingSection(
        kind=kind, max_seq_length=max_seq_length, dupe_factor=2, short_seq_prob=short
    )
    for pair in pairs_of(documents, section, seed=seed):
        spans = [range(*stretch) for stretch in pair.token_ranges]
        homes = [set(owner[span.start : span.stop].tolist()) for span in spans]
        assert [len(home) for home in homes] == [1, 1]
        assert pair.length == len(spans[0]) + len(spans[1]) + 3 <= max_seq_length
        assert pair.first_length == len(spans[0]) + 2
        random_next = kind == "nsp" and pair.next_sentence_label == 1
        assert (homes[0] != homes[1]) == random_next
        if not random_next:
            earlier, later = sorted(spans, key=lambda span: span.start)
            assert pair.next_sentence_label == int(spans[0] is later)
            gap = later.start - earlier.stop
            # A gap between the spans consists of truncated tokens.
            assert gap == 0 or (gap > 0 and pair.length == max_seq_length)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.integers(1, 80), min_size=2, max_size=5),
    st.integers(5, 40),
    st.floats(0, 1),
    st.integers(0, 2**32),
)
def test_every_sentence_is_used_even_displaced_ones(
    sizes: list[int], max_seq_length: int, short: float, seed: int
) -> None:
    # Chunks of one-token sentences reach the target exactly, so nothing is truncated.
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


def test_truncated_lengths_equal_the_releases() -> None:
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


def test_pairs_have_the_releases_distribution() -> None:
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
    # Examples of one pass share a target length. To make the sample independent, take one example
    # per pass.
    for name, figure in figures.items():
        for place in (0, -1):
            p = same_distribution(
                [figure(pairs[place]) for pairs in ours], [figure(pairs[place]) for pairs in theirs]
            )
            assert p > 1e-3, (name, place, p)
    assert same_distribution([len(p) for p in ours], [len(p) for p in theirs]) > 1e-3


KINDS = st.sampled_from(["full_sentences", "doc_sentences"])


def by_hand(
    documents: TokenisedDocuments, chosen: range, *, max_seq_length: int
) -> list[list[list[int]]]:
    """Returns examples as lists of tokens, filled sentence by sentence."""
    bounds, starts = documents.sentence_starts.tolist(), documents.document_starts.tolist()
    room = max_seq_length - 2
    examples: list[list[list[int]]] = []
    current: list[list[int]] = []
    owner = None
    for document in chosen:
        for sentence in range(starts[document], starts[document + 1]):
            tokens = list(range(bounds[sentence], bounds[sentence + 1]))
            while tokens:
                grown = [*current] if current and owner == document else [*current, []]
                grown[-1] = grown[-1] + tokens[:room]
                if current and sum(map(len, grown)) + len(grown) - 1 > room:
                    examples.append(current)
                    current = []
                    continue
                current, owner = grown, document
                tokens = tokens[room:]
    return [*examples, current]


@settings(deadline=None, max_examples=200)
@given(LENGTHS, st.integers(5, 60), KINDS)
def test_full_sentences_equal_filling_by_hand(
    lengths: list[list[int]], max_seq_length: int, kind: str
) -> None:
    documents = numbered(lengths)
    section = PairingSection.model_validate({"kind": kind, "max_seq_length": max_seq_length})
    singles = singles_of(documents, section)
    found = [[list(range(*stretch)) for stretch in single.token_ranges] for single in singles]
    every = range(len(documents))
    groups = [every] if kind == "full_sentences" else [every[at : at + 1] for at in every]
    expected = [by_hand(documents, group, max_seq_length=max_seq_length) for group in groups]
    assert found == [example for examples in expected for example in examples]
    for single, spans in zip(singles, found, strict=True):
        assert single.length == sum(map(len, spans)) + len(spans) + 1
        assert single.length == single.first_length <= max_seq_length


@pytest.mark.parametrize(
    ("kind", "name", "found"),
    [("full_sentences", "short_seq_prob", 0.1), ("doc_sentences", "dupe_factor", 10)],
)
def test_settings_without_effect_are_refused(kind: str, name: str, found: float) -> None:
    with refuses(f"pairing.{name}", place=name, found=found):
        validate(PairingSection, {"kind": kind, name: found}, source="")


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.integers(1, 80), min_size=1, max_size=5), st.integers(5, 40), st.integers(0, 2**32)
)
def test_every_sentence_is_used_once_except_last_partners(
    sizes: list[int], max_seq_length: int, seed: int
) -> None:
    # Chunks of one-token sentences reach the target exactly, so nothing is truncated.
    documents = numbered([[1] * size for size in sizes])
    section = PairingSection(kind="sop", max_seq_length=max_seq_length, dupe_factor=1)
    uses = np.zeros(len(documents.tokens), int)
    for pair in pairs_of(documents, section, seed=seed):
        for start, stop in pair.token_ranges:
            uses[start:stop] += 1
    for first, last in zip(
        documents.document_starts[:-1], documents.document_starts[1:], strict=True
    ):
        used = uses[first:last]
        if last - first == 1:  # a single sentence has no order
            assert used.tolist() == [0]
        else:
            assert np.delete(used, -2).tolist() == [1] * (last - first - 1)
            assert used[-2] in (1, 2)


def test_swapped_pairs_cannot_be_told_by_their_lengths() -> None:
    # 28 minus three special tokens is odd, so one of two long spans has one token more.
    documents = numbered([[7] * 40] * 40)
    section = PairingSection(kind="sop", max_seq_length=28, dupe_factor=20, short_seq_prob=0.0)
    pairs = pairs_of(documents, section, seed=1)
    labels = np.array([pair.next_sentence_label for pair in pairs])
    assert len(labels) > 5000
    assert stats.binomtest(int(labels.sum()), len(labels)).pvalue > 1e-3
    lengths = np.array([pair.first_length for pair in pairs])
    table = [np.unique(lengths[labels == label], return_counts=True) for label in (0, 1)]
    np.testing.assert_array_equal(table[0][0], table[1][0])
    assert len(table[0][0]) > 1
    found = stats.chi2_contingency(np.stack([table[0][1], table[1][1]]))
    assert found.pvalue > 1e-3  # pyright: ignore[reportAttributeAccessIssue]
