"""Splits a long context into windows, as google-research/bert does.

Source: `convert_examples_to_features` and `_check_is_max_context` in `run_squad.py`.
"""

from typing import NamedTuple

import numpy as np


class ContextWindows(NamedTuple):
    """The windows of one context."""

    pieces: int  # number of pieces in the context
    room: int  # number of pieces that fit in a window, at least 1
    stride: int  # number of pieces between the starts of windows

    @property
    def number(self) -> int:
        """Number of windows: 500 pieces, room 300, stride 128 → 3.

        An empty context has one window, so that its questions are predicted. (google-research/bert
        drops these questions.)
        """
        return 1 + -(-max(self.pieces - self.room, 0) // min(self.room, self.stride))

    def bounds(self, window: int) -> tuple[int, int]:
        """Returns the start and the exclusive end of a window."""
        start = window * min(self.room, self.stride)
        return start, min(start + self.room, self.pieces)

    def most_context(self, window: int) -> np.ndarray:
        """Returns whether each piece of a window has its maximum context there, bool [pieces].

        The context of a piece in a window is the smaller of the numbers of pieces before and after
        it, plus 0.01 × the window's length. The maximum is in exactly one window: the first one in
        a tie.
        """
        start, end = self.bounds(window)
        step = min(self.room, self.stride)
        reach = (self.room - 1) // step  # windows farther away do not overlap this window
        others = np.arange(max(window - reach, 0), min(window + reach + 1, self.number))
        starts = (others * step)[:, None]
        ends = np.minimum(starts + self.room, self.pieces)
        position = np.arange(start, end)[None]
        seen = np.minimum(position - starts, ends - 1 - position) + 0.01 * (ends - starts)
        inside = (position >= starts) & (position < ends)
        best = others[np.argmax(np.where(inside, seen, -np.inf), axis=0)]
        return best == window
