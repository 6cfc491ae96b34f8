"""Windows of a long context, by the rules of google-research/bert `run_squad.py`.

These are `convert_examples_to_features` and `_check_is_max_context`.
"""

from typing import NamedTuple

import numpy as np


def count_windows(pieces: np.ndarray, room: np.ndarray, *, stride: int) -> np.ndarray:
    """Returns the number of windows of each context: 500 pieces, room 300, stride 128 → 3.

    An empty context has one window, so that each question is asked (google-research/bert drops it).
    `pieces` is the size of each context, `room` the size of its windows, at least 1, both int [n];
    `stride` is the number of pieces between the starts of windows. Returns int32 [n].
    """
    over = np.maximum(pieces - room, 0)
    return (1 + -(-over // np.minimum(room, stride))).astype(np.int32)


class ContextWindows(NamedTuple):
    """The windows of one context, numbered from 0."""

    pieces: int  # pieces of the context
    room: int  # pieces that fit in a window
    stride: int  # as for `count_windows`

    def bounds(self, window: int) -> tuple[int, int]:
        """Returns the first piece of a window and one behind its last."""
        start = window * min(self.room, self.stride)
        return start, min(start + self.room, self.pieces)

    def most_context(self, window: int) -> np.ndarray:
        """Returns for each piece of a window whether no other window sees more around it.

        The context of a piece in a window is the lesser of the pieces before and behind it, plus a
        hundredth of the window's length; of equals the first counts. Each piece of a context has
        just one such window. Returns bool [pieces in the window].
        """
        pieces, room, stride = self
        start, end = self.bounds(window)
        step = min(room, stride)
        last = int(count_windows(np.array(pieces), np.array(room), stride=stride)) - 1
        reach = (room - 1) // step  # windows further off share no piece with this one
        others = np.arange(max(window - reach, 0), min(window + reach, last) + 1)
        starts = (others * step)[:, None]
        ends = np.minimum(starts + room, pieces)
        position = np.arange(start, end)[None]
        seen = np.minimum(position - starts, ends - 1 - position) + 0.01 * (ends - starts)
        inside = (position >= starts) & (position < ends)
        best = others[np.argmax(np.where(inside, seen, -np.inf), axis=0)]
        return best == window
