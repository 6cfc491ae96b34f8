import itertools

import numpy as np
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bert_jax.data.dataset.recipe import PairingSection
from bert_jax.pipelines.pairing.spans import Single
from bert_jax.pipelines.tokenised.documents import TokenisedDocuments
from tests.data.numbered import LENGTHS, numbered, pairs_of, singles_of, token_owner

KINDS = st.sampled_from(["full_sentences", "doc_sentences"])


def by_hand(
    documents: TokenisedDocuments, *, max_seq_length: int, crossing: bool
) -> list[list[list[int]]]:
    """Examples as lists of each document's tokens, filled sentence by sentence."""
    bounds, starts = documents.sentence_starts.tolist(), documents.document_starts.tolist()
    room = max_seq_length - 2
    examples: list[list[list[int]]] = []
    current: list[list[int]] = []
    owner = None

    def used(parts: list[list[int]]) -> int:
        return sum(map(len, parts)) + len(parts) - 1

    for document, (first, last) in enumerate(itertools.pairwise(starts)):
        for sentence in range(first, last):
            tokens = list(range(bounds[sentence], bounds[sentence + 1]))
            while tokens:
                if not current:
                    grown = [[]]
                elif owner == document:
                    grown = [*current]
                else:
                    grown = [*current, []]
                grown[-1] = grown[-1] + tokens[:room]
                full = used(grown) > room or (not crossing and owner not in (None, document))
                if current and full:
                    examples.append(current)
                    current, owner = [], None
                    continue
                current, owner = grown, document
                tokens = tokens[room:]
    return [*examples, current]


@settings(deadline=None, max_examples=200)
@given(LENGTHS, st.integers(5, 60), KINDS)
def test_examples_are_filled_sentence_by_sentence(
    lengths: list[list[int]], max_seq_length: int, kind: str
) -> None:
    documents = numbered(lengths)
    section = PairingSection.model_validate({"kind": kind, "max_seq_length": max_seq_length})
    found = [
        [list(range(*stretch)) for stretch in single.token_ranges]
        for single in singles_of(documents, section)
    ]
    expected = by_hand(documents, max_seq_length=max_seq_length, crossing=kind == "full_sentences")
    assert found == expected


@settings(deadline=None, max_examples=100)
@given(LENGTHS, st.integers(5, 60), KINDS)
def test_every_token_is_in_exactly_one_example_and_no_example_is_too_long(
    lengths: list[list[int]], max_seq_length: int, kind: str
) -> None:
    documents = numbered(lengths)
    owner = token_owner(documents)
    section = PairingSection.model_validate({"kind": kind, "max_seq_length": max_seq_length})
    singles = singles_of(documents, section)
    tokens = [place for single in singles for s in single.token_ranges for place in range(*s)]
    assert tokens == list(range(len(documents.tokens)))
    for single in singles:
        spans = single.token_ranges
        assert single.length == sum(stop - start for start, stop in spans) + len(spans) + 1
        assert single.length == single.first_length <= max_seq_length
        # One stretch for each document, so that a separator stands between any two.
        owners = [set(owner[start:stop].tolist()) for start, stop in spans]
        assert all(len(each) == 1 for each in owners)
        assert len(set.union(*owners)) == len(owners)
        assert kind == "full_sentences" or len(spans) == 1


def test_documents_are_separated_and_a_separator_never_ends_an_example() -> None:
    section = PairingSection(kind="full_sentences", max_seq_length=10)
    # 3 + [SEP] + 4 tokens fill the room of 8; then 6, where [SEP] and 2 more do not fit; then 2.
    assert singles_of(numbered([[3], [4], [6], [2], [1]]), section) == [
        Single(((0, 3), (3, 7))),
        Single(((7, 13),)),
        Single(((13, 15), (15, 16))),
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"kind": "full_sentences", "short_seq_prob": 0.1},
            "short_seq_prob: found 0.1, allowed: 0 with kind full_sentences",
        ),
        (
            {"kind": "doc_sentences", "dupe_factor": 10},
            "dupe_factor: found 10, allowed: 1 with kind doc_sentences",
        ),
    ],
)
def test_settings_that_would_do_nothing_are_refused(
    values: dict[str, float | str], message: str
) -> None:
    with pytest.raises(pydantic.ValidationError, match=message):
        PairingSection.model_validate(values)


@settings(deadline=None, max_examples=150)
@given(LENGTHS, st.integers(5, 60), st.floats(0, 1), st.integers(0, 2**32))
def test_both_spans_come_from_one_document_and_the_label_tells_their_order(
    lengths: list[list[int]], max_seq_length: int, short: float, seed: int
) -> None:
    documents = numbered(lengths)
    owner = token_owner(documents)
    section = PairingSection(
        kind="sop", max_seq_length=max_seq_length, dupe_factor=2, short_seq_prob=short
    )
    for pair in pairs_of(documents, section, seed=seed):
        spans = [range(*stretch) for stretch in pair.token_ranges]
        assert all(spans)
        assert pair.length == len(spans[0]) + len(spans[1]) + 3 <= max_seq_length
        assert len({int(owner[place]) for span in spans for place in span}) == 1
        earlier, later = sorted(spans, key=lambda span: span.start)
        assert pair.next_sentence_label == int(spans[0] is later)
        gap = later.start - earlier.stop
        # Between the two there is nothing but what truncation took.
        assert gap == 0 or (gap > 0 and pair.length == max_seq_length)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.integers(1, 80), min_size=1, max_size=5), st.integers(5, 40), st.integers(0, 2**32)
)
def test_every_sentence_is_used_once_but_for_the_partner_of_one_left_alone(
    sizes: list[int], max_seq_length: int, seed: int
) -> None:
    # Sentences of one token reach the target exactly, so nothing is truncated.
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
        if last - first == 1:  # one sentence has no order
            assert used.tolist() == [0]
        else:
            assert np.delete(used, -2).tolist() == [1] * (last - first - 1)
            assert used[-2] in (1, 2)


def test_half_of_the_pairs_are_swapped_and_their_lengths_do_not_tell_which() -> None:
    # An odd room, in which one of two long spans keeps a token more than the other.
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
