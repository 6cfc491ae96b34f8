import itertools

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data.dataset.recipe import PairingSection
from bert_jax.pipelines.pairing.spans import Single
from bert_jax.pipelines.tokenised.documents import TokenisedDocuments
from tests.data.numbered import LENGTHS, numbered, singles_of, token_owner

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
