"""Masking: number, selection and replacement of tokens, and their rows."""

import dataclasses
import pickle
import random
from itertools import chain

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from bert_jax.data.dataset.reader import Example
from bert_jax.data.rng import stream
from bert_jax.data.rows.masking import MaskedExample, MaskingSection, TokenMasker
from bert_jax.data.rows.masking_transform import MaskingTransform
from bert_jax.text.vocabulary import SpecialIds
from bert_jax.text.wordpiece import WordPieceTokenizer
from tests.data.distributions import same_distribution
from tests.data.reference_masking import reference_masks
from tests.project import refuses

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
VOCAB_SIZE = 1000
FIRST_CONTINUATION = 700
IS_CONTINUATION = np.arange(VOCAB_SIZE) >= FIRST_CONTINUATION
# 0.1% quantiles of the chi-square distribution, by degrees of freedom.
CHI_SQUARE = {1: 10.83, 2: 13.82, 99: 148.23}

settings = hypothesis.settings(deadline=None, max_examples=60)


def make_example(first: list[int], second: list[int], label: int = 1) -> Example:
    ids = [SPECIAL.cls, *first, SPECIAL.sep, *second, SPECIAL.sep]
    return Example(np.array(ids, np.uint16), len(first) + 2, label)


def masker(masking: MaskingSection, max_predictions: int = 1000) -> TokenMasker:
    return TokenMasker(masking, max_predictions, SPECIAL, VOCAB_SIZE, IS_CONTINUATION)


def mask(
    ids: np.ndarray, seed: int, masking: MaskingSection, max_predictions: int = 1000
) -> MaskedExample:
    return masker(masking, max_predictions)(ids, stream(seed, "test"))


def row_maker(seq_length: int, **masking) -> MaskingTransform:
    section = MaskingSection(**masking)
    return MaskingTransform(seq_length, masker(section, section.predictions(seq_length)))


ids_lists = st.lists(st.integers(5, VOCAB_SIZE - 1), min_size=1, max_size=120)
examples = st.builds(make_example, ids_lists, ids_lists)
units = st.sampled_from(["token", "whole_word"])


def words_of(ids: np.ndarray) -> list[list[int]]:
    """Returns the positions of each word, one token at a time."""
    words: list[list[int]] = []
    inside = False
    for position, token in enumerate(ids.tolist()):
        if token in (SPECIAL.cls, SPECIAL.sep):
            inside = False
        elif inside and token >= FIRST_CONTINUATION:
            words[-1].append(position)
        else:
            words.append([position])
            inside = True
    return words


@hypothesis.settings(deadline=None, max_examples=160)
@hypothesis.given(
    examples,
    st.integers(0, 2**32),
    st.sampled_from(["token", "whole_word", "ngram", "span"]),
    st.integers(1, 40),
    st.floats(0.01, 0.9),
    st.integers(1, 12),
)
def test_masks_respect_originals_words_and_budget(example, seed, unit, most, rate, max_words):
    spans = {"max_words": max_words} if unit in ("ngram", "span") else {}
    ids = example.input_ids
    before = ids.copy()
    masked = mask(ids, seed, MaskingSection(unit=unit, rate=rate, **spans), most)
    np.testing.assert_array_equal(ids, before)
    np.testing.assert_array_equal(masked.ids, ids[masked.positions])
    assert (np.diff(masked.positions) > 0).all()
    untouched = np.delete(np.arange(len(ids)), masked.positions)
    np.testing.assert_array_equal(masked.input_ids[untouched], ids[untouched])
    assert not np.isin(masked.ids, [SPECIAL.cls, SPECIAL.sep]).any()
    budget = min(most, max(1, round(len(ids) * rate)), len(ids) - 3)
    chosen = set(masked.positions.tolist())
    if unit == "token":  # as many masks as google-research/bert
        assert len(chosen) == budget
        return
    words = words_of(ids)
    assert all(chosen.issuperset(word) or chosen.isdisjoint(word) for word in words)
    left_out = [len(word) for word in words if chosen.isdisjoint(word)]
    # Every skipped word is too long for the rest of the budget.
    assert len(chosen) <= budget < len(chosen) + min(left_out, default=budget + 1)


@pytest.mark.parametrize("unit", ["token", "whole_word"])
def test_masks_have_google_research_berts_distribution(unit):
    # Words have one to four tokens. No span begins with a continuation: there the masks differ on
    # purpose, see test_a_continuation_after_sep_is_a_separate_word.
    words = [[10 + w] + [FIRST_CONTINUATION + w] * (w % 4) for w in range(24)]
    first, second = (list(chain.from_iterable(part)) for part in (words[:15], words[15:]))
    ids = make_example(first, second).input_ids
    rng, trials = random.Random(7), 6000
    ours = [mask(ids, seed, MaskingSection(unit=unit), 8) for seed in range(trials)]
    seen = [
        list(zip(m.positions.tolist(), m.input_ids[m.positions].tolist(), strict=True))
        for m in ours
    ]
    theirs = [
        reference_masks(
            ids.tolist(),
            continuations=range(FIRST_CONTINUATION, VOCAB_SIZE) if unit == "whole_word" else (),
            kept=(SPECIAL.cls, SPECIAL.sep),
            mask_id=SPECIAL.mask,
            vocab_size=VOCAB_SIZE,
            most=8,
            rng=rng,
        )
        for _ in range(trials)
    ]

    def kind(masked: tuple[int, int]) -> int:
        position, shown = masked
        return [SPECIAL.mask, ids[position], shown].index(shown)

    figures = {
        "how many": len,
        "first place": lambda row: row[0][0],
        "last place": lambda row: row[-1][0],
        "any place": lambda row: rng.choice(row)[0],
        "place of the third": lambda row: row[min(2, len(row) - 1)][0],
        "gap of the first two": lambda row: row[1][0] - row[0][0] if len(row) > 1 else 0,
        "kind of the first": lambda row: kind(row[0]),
        "how many are [MASK]": lambda row: sum(kind(masked) == 0 for masked in row),
        "how many stay": lambda row: sum(kind(masked) == 1 for masked in row),
        "random ones": lambda row: max((m[1] for m in row if kind(m) == 2), default=0) // 50,
    }
    for name, figure in figures.items():
        p = same_distribution([figure(row) for row in seen], [figure(row) for row in theirs])
        assert p > 1e-3, (name, p)


def test_random_replacements_are_uniform_over_the_vocabulary():
    section = MaskingSection(replace_with_mask=0.0, replace_with_random=1.0, rate=0.5)
    ids = make_example([10] * 250, [10] * 247).input_ids
    seen = np.concatenate(
        [m.input_ids[m.positions] for m in (mask(ids, seed, section) for seed in range(200))]
    )
    counts = np.bincount(seen // 10, minlength=100)
    assert seen.min() == 0
    assert seen.max() == VOCAB_SIZE - 1
    expected = len(seen) / 100
    assert ((counts - expected) ** 2 / expected).sum() < CHI_SQUARE[99]


@settings
@hypothesis.given(examples, st.integers(0, 2**32), st.booleans())
def test_a_row_has_the_example_and_its_masks(example, seed, has_pair):
    length = len(example.input_ids)
    if not has_pair:
        example = Example(example.input_ids, length, 0)
    row = row_maker(256)(example, stream(seed))
    tokens, slots, one = ("int32", (256,)), (39,), (1,)
    assert {name: (a.dtype.name, a.shape) for name, a in row.items()} == {
        **dict.fromkeys(("input_ids", "token_type_ids", "segment_ids"), tokens),
        **dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), ("int32", slots)),
        "masked_lm_weights": ("float32", slots),
        **dict.fromkeys(("next_sentence_labels", "cls_positions"), ("int32", one)),
        "next_sentence_weights": ("float32", one),
    }
    real = row["masked_lm_weights"] == 1
    assert (row["masked_lm_weights"][~real] == 0).all()
    restored = row["input_ids"].copy()
    restored[row["masked_lm_positions"][real]] = row["masked_lm_ids"][real]
    np.testing.assert_array_equal(restored[:length], example.input_ids)
    assert (restored[length:] == SPECIAL.pad).all()
    places = np.arange(256)
    np.testing.assert_array_equal(row["segment_ids"], places < length)
    second = (places >= example.first_length) & (places < length)
    np.testing.assert_array_equal(row["token_type_ids"], second)
    assert row["next_sentence_labels"] == row["next_sentence_weights"] == [has_pair]
    assert row["cls_positions"] == [0]


@pytest.mark.parametrize("unit", ["whole_word", "ngram", "span"])
def test_a_row_depends_only_on_its_random_stream(unit):
    make = row_maker(128, unit=unit)
    example = make_example(list(range(10, 60)), list(range(690, 740)))
    again = pickle.loads(pickle.dumps(make))
    for name, value in make(example, stream(5, "mask", 0, 3)).items():
        np.testing.assert_array_equal(value, again(example, stream(5, "mask", 0, 3))[name])
    other = make(example, stream(5, "mask", 1, 3))["masked_lm_positions"]
    assert (other != make(example, stream(5, "mask", 0, 3))["masked_lm_positions"]).any()


def test_rows_for_a_tokenizer_start_at_the_first_rate_and_have_the_pair_arrays_if_asked():
    masking = MaskingSection(rate=0.4, final_rate=0.1)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{at}" for at in range(95))]
    tokenizer = WordPieceTokenizer(pieces, lower_case=True)
    for pairs in (False, True):
        rows = MaskingTransform.from_tokenizer(
            tokenizer, seq_length=128, masking=masking, pairs=pairs
        )
        row = rows(make_example(list(range(5, 55)), list(range(5, 52))), stream(1, "test"))
        assert ("cls_positions" in row, "next_sentence_labels" in row) == (pairs, pairs)
        assert row["masked_lm_weights"].sum() == pytest.approx(0.4 * 100, abs=2)


def test_every_setting_of_rows_changes_the_fingerprint():
    base = row_maker(128)
    makers = [
        base,
        row_maker(256),
        row_maker(128, rate=0.2),
        row_maker(128, rate=0.2, final_rate=0.1),
        row_maker(128, unit="whole_word"),
        row_maker(128, unit="span"),
        row_maker(128, unit="span", max_words=5),
        row_maker(128, unit="ngram"),
        row_maker(128, unit="ngram", segmenter="json:loads"),
        row_maker(128, replace_with_mask=0.9),
        row_maker(128, replace_with_random=0.2),
        row_maker(128, max_predictions=10),
        MaskingTransform(128, dataclasses.replace(base.masker, max_predictions=7)),
        dataclasses.replace(base, max_examples=2),
        dataclasses.replace(base, max_examples=3),
    ]
    assert len({tuple(sorted(maker.fingerprint().items())) for maker in makers}) == len(makers)
    assert row_maker(128).fingerprint() == base.fingerprint()


def test_a_continuation_after_sep_is_a_separate_word():
    example = make_example([10], [FIRST_CONTINUATION, FIRST_CONTINUATION + 1])
    section = MaskingSection(unit="whole_word", rate=0.3)  # two of six tokens
    chosen = {
        tuple(mask(example.input_ids, seed, section).positions.tolist()) for seed in range(50)
    }
    assert chosen == {(1,), (3, 4)}


def test_a_token_beyond_the_vocabulary_is_named():
    example = make_example([10, VOCAB_SIZE], [10])
    with refuses("dataset.token_id", place="dataset", found=1000, most=999):
        row_maker(128)(example, stream(0))
