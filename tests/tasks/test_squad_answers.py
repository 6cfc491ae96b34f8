import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings

from bert_jax.tasks.squad.answers import (
    Answers,
    find_answers,
    find_candidates,
)
from bert_jax.tasks.squad.offsets import ContextWindows
from tests.tasks import reference_squad

FIRST = 4  # [CLS] two pieces of a question [SEP]


def _text(first: int, last: int) -> tuple[str, int]:
    """Returns the text and the start of a span. Some spans have equal texts."""
    return " ".join("abcab"[at % 5] for at in range(first, last + 1)), first


def _answers(
    rows: list[np.ndarray], spans: list[tuple[int, int]], *, n_best: int, longest: int, null: bool
) -> Answers:
    windows = []
    for number, (row, (start, _)) in enumerate(zip(rows, spans, strict=True)):
        most = [reference_squad.most_context(spans, at) == number for at in range(*spans[number])]
        windows.append(
            find_candidates(
                row,
                np.array(most, np.bool_),
                first=FIRST,
                offset=start,
                n_best=n_best,
                max_answer_length=longest,
            )
        )
    return find_answers(windows, _text, n_best=n_best, with_null=null)


@settings(deadline=None, max_examples=100)
@given(
    pieces=st.integers(1, 30),
    room=st.integers(3, 12),
    stride=st.integers(1, 12),
    n_best=st.integers(2, 8),
    longest=st.integers(1, 6),
    null=st.booleans(),
    coarse=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_answers_equal_the_references(
    pieces: int,
    room: int,
    stride: int,
    n_best: int,
    longest: int,
    null: bool,
    coarse: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    spans = reference_squad.windows(pieces, room, stride)
    rows = [rng.normal(size=(FIRST + end - start + 1, 2)) for start, end in spans]
    if coarse:  # many ties
        rows = [row.round() for row in rows]
    rows = [row.astype(np.float32) for row in rows]
    for row in rows:  # ensure a candidate span, which `run_squad.py` needs
        row[FIRST] += 20
    expected = reference_squad.answer(
        [row.astype(np.float64).tolist() for row in rows],
        spans,
        FIRST,
        lambda first, last: _text(first, last)[0],
        n_best=n_best,
        longest=longest,
        version_2=null,
    )
    found = _answers(rows, spans, n_best=n_best, longest=longest, null=null)
    assert [(entry.text, *entry.logits) for entry in found.nbest] == expected[0]
    assert found.null_score_difference == pytest.approx(expected[1], abs=1e-12)


def test_answers_that_differ_in_white_space_are_merged() -> None:
    rows = [np.zeros((FIRST + 3, 2), np.float32)]
    rows[0][FIRST, :] = 5
    window = find_candidates(
        rows[0], np.ones(2, np.bool_), first=FIRST, offset=0, n_best=9, max_answer_length=2
    )
    found = find_answers(
        [window],
        lambda first, last: ("in  paris" if first == last else "in paris", first),
        n_best=9,
        with_null=False,
    )
    assert [entry.text for entry in found.nbest] == ["in  paris"]


@settings(deadline=None, max_examples=80)
@given(pieces=st.integers(1, 120), room=st.integers(1, 40), stride=st.integers(1, 60))
@example(pieces=40, room=40, stride=1)
@example(pieces=120, room=40, stride=40)
def test_windows_equal_the_references(pieces: int, room: int, stride: int) -> None:
    expected = reference_squad.windows(pieces, room, stride)
    windows = ContextWindows(pieces, room, stride)
    assert [windows.bounds(number) for number in range(windows.number)] == expected
    for number, (start, end) in enumerate(expected):
        best = [reference_squad.most_context(expected, at) == number for at in range(start, end)]
        assert windows.most_context(number).tolist() == best
