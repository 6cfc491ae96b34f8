"""A sample is uniform, bounded and reproducible."""

import functools
from collections import Counter
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from bert_jax.errors import UserError
from bert_jax.pipelines.vocabulary.sample import measure, sample_lines, sample_mixture


def test_a_corpus_within_the_bounds_is_kept_whole_and_in_order() -> None:
    lines = ["b", "", "a", "  ", "c" * 5000, "é"]
    sample = sample_lines(lines, max_lines=10, max_bytes=10_000, seed=3)
    assert sample == ["b", "a", "c" * 2048, "c" * 2048, "c" * 904, "é"]


def test_every_line_is_as_likely_as_any_other() -> None:
    lines = [str(number) * (1 + number % 3) for number in range(40)]
    seen: Counter[str] = Counter()
    runs = 2000
    for seed in range(runs):
        sample = sample_lines(lines, max_lines=10, max_bytes=10_000, seed=seed)
        assert len(sample) == 10
        assert sample == [line for line in lines if line in set(sample)]
        seen.update(sample)
    # Binomial(2000, 1/4): the standard error is 19.4; five of them for forty lines.
    assert all(abs(seen[line] - runs / 4) < 97 for line in lines)


@settings(deadline=None, max_examples=50)
@given(
    lines=st.lists(st.text(alphabet="aé中", min_size=1, max_size=30), max_size=50),
    max_bytes=st.integers(1, 400),
    max_lines=st.integers(1, 30),
    seed=st.integers(0, 9),
)
def test_bounds_hold_and_the_seed_decides(
    lines: list[str], max_bytes: int, max_lines: int, seed: int
) -> None:
    sample = sample_lines(lines, max_lines=max_lines, max_bytes=max_bytes, seed=seed)
    assert len(sample) <= max_lines
    assert sum(len(line.encode()) for line in sample) <= max_bytes
    assert sample == sample_lines(lines, max_lines=max_lines, max_bytes=max_bytes, seed=seed)


LANGUAGES = {
    "en": [f"english line {number}" for number in range(9000)],
    "is": [f"íslenska {number}" for number in range(300)],
    "zh": [f"中文的第{number}行文字在这里" for number in range(700)],
}


def mixed(languages: dict[str, list[str]], **settings: Any) -> list[str]:
    openers = {language: functools.partial(iter, lines) for language, lines in languages.items()}
    bounds = {"max_lines": 10**9, "max_bytes": 10**9, "seed": 0}
    return sample_mixture(openers, **(bounds | settings))


def byte_shares(sample: list[str]) -> dict[str, float]:
    counts: Counter[str] = Counter()
    for line in sample:
        counts[next(c for c, lines in LANGUAGES.items() if line[:3] == lines[0][:3])] += len(
            line.encode()
        )
    return {language: counts[language] / counts.total() for language in LANGUAGES}


@pytest.mark.parametrize("bounds", [{}, {"max_bytes": 50_000}, {"max_lines": 3000}], ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.3, 0.7, 1.0])
def test_a_mixture_holds_the_languages_in_the_smoothed_shares(
    bounds: dict[str, int], smoothing: float
) -> None:
    sizes = {language: measure(lines).bytes for language, lines in LANGUAGES.items()}
    powers = {language: size**smoothing for language, size in sizes.items()}
    wanted = {language: power / sum(powers.values()) for language, power in powers.items()}
    sample = mixed(LANGUAGES, smoothing=smoothing, **bounds)
    assert byte_shares(sample) == pytest.approx(wanted, abs=0.004)
    held = measure(sample)
    assert held.parts <= bounds.get("max_lines", 10**9)
    assert held.bytes <= bounds.get("max_bytes", sum(sizes.values()))
    # As much as the bounds allow, or as the corpus has.
    full = held.bytes / min(sum(sizes.values()), bounds.get("max_bytes", 10**9))
    assert max(full, held.parts / bounds.get("max_lines", 10**9)) > 0.99


def test_a_language_without_text_is_named() -> None:
    with pytest.raises(UserError, match=r"^input: found no text in the files of is"):
        mixed(LANGUAGES | {"is": ["", " "]}, smoothing=0.7)
