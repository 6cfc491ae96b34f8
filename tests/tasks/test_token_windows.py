import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.tasks.tokens.split import cut_windows


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_every_word_is_read_once_where_the_fewer_of_its_neighbours_are_most(
    data: st.DataObject,
) -> None:
    room = data.draw(st.integers(1, 12))
    stride = data.draw(st.integers(1, room))
    lengths = np.array(data.draw(st.lists(st.integers(1, room), min_size=1, max_size=40)))
    windows = cut_windows(lengths, room=room, stride=stride)
    assert [word for window in windows for word in range(window.read, window.read_end)] == list(
        range(len(lengths))
    )
    for window in windows:
        assert lengths[window.first : window.end].sum() <= room
        assert window.first <= window.read <= window.read_end <= window.end
    for before, after in itertools.pairwise(windows):
        assert before.first < after.first <= before.end < after.end
        step = lengths[before.first : after.first].sum()
        # A window begins with a whole word, and leaves out none.
        assert step >= stride or after.first == before.end
    for word in range(len(lengths)):
        contexts = [
            min(lengths[window.first : word].sum(), lengths[word + 1 : window.end].sum())
            if window.first <= word < window.end
            else -1
            for window in windows
        ]
        read = next(i for i, w in enumerate(windows) if w.read <= word < w.read_end)
        assert contexts[read] == max(contexts)
        assert read == contexts.index(max(contexts))
