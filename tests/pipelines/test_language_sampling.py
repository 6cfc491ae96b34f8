"""Languages get the shares that the rule of smoothing gives them."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data.dataset.recipe import PairingKind, PairingSection
from bert_jax.pipelines.pairing.language_sampling import boosts, draw_passes, mixed_shares
from bert_jax.pipelines.pairing.pair_documents import pair_documents
from bert_jax.pipelines.pairing.spans import Pair, Single
from bert_jax.pipelines.tokenised.documents import TokenisedDocuments, split_keys
from tests.data.numbered import numbered, token_owner

SIZES = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 10**12), min_size=1)


def reference(probabilities: list[float], s: float) -> list[float]:
    """ "We exponentiate each probability by some factor S, and then re-normalize"."""
    powered = [probability**s for probability in probabilities]
    return [each / sum(powered) for each in powered]


def test_shares_worked_by_hand() -> None:
    # 0.9^0.7 = 0.9289, 0.1^0.7 = 0.1995.
    assert mixed_shares({"en": 90, "is": 10}, smoothing=0.7) == pytest.approx(
        {"en": 0.9289 / 1.1284, "is": 0.1995 / 1.1284}, abs=1e-4
    )
    assert mixed_shares({"en": 90, "is": 10}, smoothing=0) == {"en": 0.5, "is": 0.5}
    # 0.5 / 0.9 and 0.5 / 0.1.
    assert boosts({"en": 90, "is": 10}, smoothing=0) == pytest.approx({"en": 5 / 9, "is": 5})
    # "English would be sampled 1000x more than Icelandic, but after smoothing only 100x more."
    shares = mixed_shares({"en": 1000, "is": 1}, smoothing=0.7)
    assert shares["en"] / shares["is"] == pytest.approx(125.89, abs=0.01)


@given(SIZES, st.floats(0, 1))
def test_shares_are_those_of_the_rule_written_down_again(sizes: dict[str, int], s: float) -> None:
    total = sum(sizes.values())
    wanted = reference([size / total for size in sizes.values()], s)
    shares = mixed_shares(sizes, smoothing=s)
    assert list(shares.values()) == pytest.approx(wanted)
    boost = boosts(sizes, smoothing=s)
    for language, size in sizes.items():
        assert boost[language] * size / total == pytest.approx(shares[language])
    assert sum(boost[language] * sizes[language] for language in sizes) == pytest.approx(total)


@given(SIZES)
def test_without_smoothing_no_language_gets_more_or_less(sizes: dict[str, int]) -> None:
    assert set(boosts(sizes, smoothing=1).values()) == {1.0}


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 40), st.floats(0, 4), st.integers(0, 2**32))
def test_a_document_has_the_whole_passes_and_sometimes_one_more(
    count: int, mean: float, seed: int
) -> None:
    passes = draw_passes(split_keys(range(count)), mean=mean, seed=seed)
    times = Counter(document for chosen in passes for document in chosen)
    assert all(times[document] in {int(mean), int(mean) + 1} for document in range(count))
    for earlier, later in pairwise(passes):
        assert set(later) <= set(earlier)


def test_the_mean_of_passes_is_met_and_each_document_has_its_own_draw() -> None:
    keys = split_keys(range(20_000))
    passes = draw_passes(keys, mean=2.3, seed=1)
    assert [len(chosen) for chosen in passes[:2]] == [20_000, 20_000]
    assert abs(len(passes[2]) - 6000) < 4 * np.sqrt(20_000 * 0.3 * 0.7)
    # Whatever documents are around it.
    some = draw_passes(keys[5000:7000], mean=2.3, seed=1)
    assert [5000 + document for document in some[2]] == [
        document for document in passes[2] if 5000 <= document < 7000
    ]


def owners(documents: TokenisedDocuments, example: Pair | Single) -> list[int]:
    """The document of each stretch."""
    owner = token_owner(documents)
    return [owner[start] for start, _ in example.token_ranges]


@pytest.mark.parametrize("kind", ["nsp", "sop", "full_sentences", "doc_sentences"])
def test_documents_are_used_as_often_as_their_passes_say(kind: PairingKind) -> None:
    documents = numbered([[4, 5, 6, 3] for _ in range(300)])
    section = PairingSection.model_validate(
        {"kind": kind, "max_seq_length": 512, "dupe_factor": 1, "short_seq_prob": 0.0}
    )
    made = list(pair_documents(documents, section, seed=5, boost=1.6))
    drawn = draw_passes(documents.keys, mean=1.6, seed=5)
    wanted = Counter(document for chosen in drawn for document in chosen)
    assert set(wanted.values()) == {1, 2}
    counted: Counter[int] = Counter()
    for example in made:
        homes = owners(documents, example)
        spans = zip(homes, example.token_ranges, strict=True)
        if kind == "nsp" and example.next_sentence_label == 1:
            spans = list(spans)[:1]
            assert homes[0] != homes[1]
        for home, (start, stop) in spans:
            counted[home] += stop - start
    # No example is truncated here: a pass uses each of the 18 tokens once.
    assert counted == Counter({document: 18 * times for document, times in wanted.items()})


def test_a_document_without_a_pass_may_be_the_random_next() -> None:
    documents = numbered([[4, 5, 6, 3] for _ in range(100)])
    section = PairingSection(max_seq_length=32, dupe_factor=1, short_seq_prob=0.0)
    made = list(pair_documents(documents, section, seed=5, boost=0.2))
    first = {owners(documents, pair)[0] for pair in made}
    second = {owners(documents, pair)[1] for pair in made if pair.next_sentence_label == 1}
    assert 5 < len(first) < 40
    assert second - first


def test_further_passes_of_full_sentences_come_in_another_order() -> None:
    documents = numbered([[4, 5] for _ in range(60)])
    section = PairingSection(kind="full_sentences", max_seq_length=20)
    as_they_come = list(pair_documents(documents, section, seed=5))
    assert list(pair_documents(documents, section, seed=5, boost=1.0)) == as_they_come
    fewer = list(pair_documents(documents, section, seed=5, boost=0.5))
    homes = [home for example in fewer for home in owners(documents, example)]
    assert homes == sorted(homes)
    more = list(pair_documents(documents, section, seed=5, boost=1.5))
    homes = [home for example in more for home in owners(documents, example)]
    assert sorted(set(homes)) == list(range(60))
    assert homes[:60] != sorted(homes[:60])
