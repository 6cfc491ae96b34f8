import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bert_jax.data.dataset.recipe import PairingSection
from tests.data.numbered import LENGTHS, numbered, pairs_of, token_owner


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
