"""N-grams and spans: lengths, positions and replacement."""

import numpy as np
import pytest
from scipy import stats

from bert_jax.data.rng import stream
from bert_jax.data.rows import masking
from bert_jax.data.rows.mask_selection import (
    Words,
    choose_spans,
    find_words,
)
from bert_jax.data.rows.masking import MaskingSection
from bert_jax.validation import validate
from tests.data.test_masking import (
    FIRST_CONTINUATION,
    SPECIAL,
    make_example,
    mask,
)
from tests.project import refuses


def one_word_each(count: int) -> Words:
    return find_words(np.arange(count), np.zeros(count, bool))


def drawn(section: MaskingSection, words: Words, *, budget: int, trials: int):
    """Yields the spans of many draws."""
    for trial in range(trials):
        draws = stream(3, "spans", trial).random((2, len(words.starts)))
        chances = section.span_chances
        yield choose_spans(words, keys=draws[0], sizes=draws[1], chances=chances, budget=budget)


@pytest.mark.parametrize(
    ("unit", "law"),
    [
        ("ngram", np.array([6, 3, 2]) / 11),
        ("span", 0.2 * 0.8 ** np.arange(10) / (1 - 0.8**10)),
    ],
)
def test_lengths_follow_the_papers_distribution(unit, law):
    # The budget is the longest span, so the first span is never cut.
    spans = drawn(MaskingSection(unit=unit), one_word_each(400), budget=10, trials=4000)
    first = [s[0][:2] for s in spans]
    inside = [size for begin, size in first if begin < 390]
    counts = np.bincount(inside, minlength=len(law) + 1)[1:]
    assert stats.chisquare(counts, law * len(inside)).pvalue > 1e-3


def test_spans_begin_at_every_word_equally_often():
    spans = drawn(MaskingSection(unit="span"), one_word_each(100), budget=10, trials=5000)
    counts = np.bincount([s[0].first for s in spans], minlength=100)
    assert stats.chisquare(counts).pvalue > 1e-3


def test_a_span_ends_at_a_special_token(monkeypatch):
    monkeypatch.setattr(masking, "SPAN_STOP", 1e-9)
    ids = np.array([2, 10, 3, 11, 12, 3])
    section = MaskingSection(unit="span", rate=0.34)
    chosen = {tuple(mask(ids, seed, section).positions.tolist()) for seed in range(60)}
    # Two tokens are masked. A span from token 11 contains both. A span from token 10 ends after one
    # token, and another span follows.
    assert chosen == {(1, 3), (1, 4), (3, 4)}


def test_n_grams_are_replaced_per_token_at_80_10_10():
    counts, mixed = np.zeros(3), 0
    ids = make_example([10] * 250, [10] * 247).input_ids
    for seed in range(400):
        masked = mask(ids, seed, MaskingSection(unit="ngram"))
        seen = masked.input_ids[masked.positions]
        kinds = np.where(seen == SPECIAL.mask, 0, np.where(seen == masked.ids, 2, 1))
        counts += np.bincount(kinds, minlength=3)
        mixed += len(set(kinds.tolist())) > 1
    expected = counts.sum() * np.array([0.8 + 1e-4, 0.1 * 0.998, 0.1 + 1e-4])
    assert stats.chisquare(counts, expected).pvalue > 1e-3
    assert mixed > 200


def test_a_span_is_replaced_as_a_whole():
    # Words have five tokens and the budget is five, so there is one span.
    word = [10, *[FIRST_CONTINUATION] * 4]
    ids = make_example(word * 3, word * 3).input_ids
    section = MaskingSection(unit="span")
    counts = np.zeros(3)
    for seed in range(1500):
        masked = mask(ids, seed, section)
        seen = masked.input_ids[masked.positions]
        assert len(seen) == 5
        if (seen == SPECIAL.mask).all():
            counts[0] += 1
        elif (seen == masked.ids).all():
            counts[2] += 1
        else:  # each token is replaced independently
            counts[1] += 1
            assert len(set(seen.tolist())) > 1
    assert stats.chisquare(counts, counts.sum() * np.array([0.8, 0.1, 0.1])).pvalue > 1e-3


@pytest.mark.parametrize(
    ("setting", "found", "allowed"),
    [
        ("max_words", 3, ("ngram", "span")),
        ("segmenter", "jieba:lcut", ("whole_word", "ngram", "span")),
    ],
)
def test_a_setting_unused_by_its_unit_is_refused(setting, found, allowed):
    with refuses("masking.unit", place=setting, found=found, allowed=allowed, unit="token"):
        validate(MaskingSection, {setting: found}, source="")
    assert MaskingSection.model_validate_json(MaskingSection().model_dump_json())
