"""Windows of a long context, by the rules of google-research/bert `run_squad.py`.

These are `convert_examples_to_features` and `_check_is_max_context`.
"""

from typing import NamedTuple

import numpy as np


class ContextWindows(NamedTuple):
    """The windows of one context, numbered from 0."""

    pieces: int  # pieces of the context
    room: int  # pieces that fit in a window, at least 1
    stride: int  # pieces between the starts of windows

    @property
    def number(self) -> int:
        """The number of windows: 500 pieces, room 300, stride 128 → 3.

        An empty context has one, so that each question is asked (google-research/bert drops it).
        """
        return 1 + -(-max(self.pieces - self.room, 0) // min(self.room, self.stride))

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
        start, end = self.bounds(window)
        step = min(self.room, self.stride)
        reach = (self.room - 1) // step  # windows further off share no piece with this one
        others = np.arange(max(window - reach, 0), min(window + reach + 1, self.number))
        starts = (others * step)[:, None]
        ends = np.minimum(starts + self.room, self.pieces)
        position = np.arange(start, end)[None]
        seen = np.minimum(position - starts, ends - 1 - position) + 0.01 * (ends - starts)
        inside = (position >= starts) & (position < ends)
        best = others[np.argmax(np.where(inside, seen, -np.inf), axis=0)]
        return best == window
