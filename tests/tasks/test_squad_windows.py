import hypothesis.strategies as st
import numpy as np
from hypothesis import example, given, settings

from bert_jax.tasks.squad.split import ContextWindows, count_windows
from tests.tasks import reference_squad


def test_windows_by_hand() -> None:
    """10 pieces, 6 to a window, 3 on: 0-6, 3-9, 6-10."""
    assert count_windows(np.array([10]), np.array([6]), stride=3).tolist() == [3]
    windows = ContextWindows(pieces=10, room=6, stride=3)
    assert [windows.bounds(n) for n in range(3)] == [(0, 6), (3, 9), (6, 10)]
    # Piece 3 has 2 behind it in the first window and none before it in the second; piece 4 has
    # 1 on the lesser side in both: the first counts.
    most = [windows.most_context(n).tolist() for n in range(3)]
    assert [np.flatnonzero(row).tolist() for row in most] == [[0, 1, 2, 3, 4], [2, 3, 4], [2, 3]]


def test_an_empty_context_has_one_window() -> None:
    assert count_windows(np.array([0, 1]), np.array([5, 5]), stride=3).tolist() == [1, 1]
    windows = ContextWindows(pieces=0, room=5, stride=3)
    assert windows.bounds(0) == (0, 0)
    assert windows.most_context(0).tolist() == []


@settings(deadline=None, max_examples=80)
@given(pieces=st.integers(1, 120), room=st.integers(1, 40), stride=st.integers(1, 60))
@example(pieces=40, room=40, stride=1)
@example(pieces=120, room=40, stride=40)
def test_windows_are_those_of_the_reference(pieces: int, room: int, stride: int) -> None:
    expected = reference_squad.windows(pieces, room, stride)
    count = int(count_windows(np.array([pieces]), np.array([room]), stride=stride)[0])
    windows = ContextWindows(pieces, room, stride)
    assert [windows.bounds(number) for number in range(count)] == expected
    for number, (start, end) in enumerate(expected):
        best = [reference_squad.most_context(expected, at) == number for at in range(start, end)]
        assert windows.most_context(number).tolist() == best
