import hypothesis.strategies as st
import numpy as np
from hypothesis import example, given, settings

from bert_jax.tasks.squad.split import ContextWindows, count_windows
from tests.tasks import reference_squad


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
