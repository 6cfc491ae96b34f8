"""Languages get the shares that the rule of smoothing gives them."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.data.dataset.recipe import PairingKind, PairingSection
from bert_jax.pipelines.pairing.language_sampling import boosts, draw_passes, mixed_shares
from bert_jax.pipelines.pairing.pair_documents import pair_documents
from bert_jax.pipelines.pairing.spans import Pair, Single
from bert_jax.pipelines.tokenised.documents import TokenisedDocuments
from tests.data.numbered import numbered, token_owner

SIZES = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 10**12), min_size=1)


def reference(probabilities: list[float], s: float) -> list[float]:
    """ "We exponentiate each probability by some factor S, and then re-normalize"."""
    powered = [probability**s for probability in probabilities]
    return [each / sum(powered) for each in powered]


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
