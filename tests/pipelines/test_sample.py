"""A sample is uniform, bounded and reproducible."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import hypothesis.strategies as st
from hypothesis import given, settings

from pipelines.sample import cut_line, sample_lines


@settings(deadline=None, max_examples=100)
@given(line=st.text(alphabet="ab é中", max_size=60), limit=st.integers(1, 12))
def test_cutting_loses_no_text_and_keeps_the_limit(line: str, limit: int) -> None:
    parts = list(cut_line(line, limit=limit))
    assert "".join(parts).replace(" ", "") == line.replace(" ", "")
    assert all(0 < len(part) <= limit for part in parts)


@settings(deadline=None, max_examples=100)
@given(line=st.lists(st.text(alphabet="abc", min_size=1, max_size=8), max_size=20).map(" ".join))
def test_cutting_leaves_words_whole(line: str) -> None:
    assert " ".join(cut_line(line, limit=8)).split() == line.split()


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


def test_memory_does_not_grow_with_the_corpus() -> None:
    def peak(lines: int) -> int:
        tracemalloc.start()
        corpus = (f"line {number} " * 20 for number in range(lines))
        sample = sample_lines(corpus, max_lines=100_000, max_bytes=100_000, seed=0)
        assert sum(map(len, sample)) > 90_000
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    assert peak(40_000) < 1.5 * peak(4_000)
