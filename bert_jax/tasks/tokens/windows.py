"""Sentences longer than a row, cut into windows that overlap."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Window(NamedTuple):
    """Words `first` to `end` of a sentence, of which `read` to `read_end` are predicted here."""

    first: int
    end: int
    read: int
    read_end: int


def cut_windows(lengths: np.ndarray, *, room: int, stride: int) -> list[Window]:
    """Cuts a sentence between words.

    Ten words of one piece with room 6 and stride 4 → words 0–6 and 4–10, of which 0–5 and 5–10 are
    predicted there. Every word is predicted in one window: where the fewer of the pieces before and
    after it are most (the maximum context of `run_squad.py` in google-research/bert), in the
    earlier one in a draw.

    Args:
        lengths: pieces of each word, 1 to `room`: int [words].
        room: pieces that a window can hold.
        stride: pieces from the beginning of a window to that of the next, 1 to `room`; other where
            a word ends otherwise, or the next word is long.
    """
    ends = np.cumsum(lengths)
    starts = ends - lengths
    bounds: list[tuple[int, int]] = []
    first = 0
    while True:
        end = int(np.searchsorted(ends, starts[first] + room, side="right"))
        bounds.append((first, end))
        if end == len(lengths):
            break
        # The next one goes as far as it must to hold the word at `end`, and leaves out none.
        following = max(starts[first] + stride, ends[end] - room)
        first = min(int(np.searchsorted(starts, following)), end)
    windows = []
    read = 0
    for index, (first, end) in enumerate(bounds):
        read_end = end
        if index + 1 < len(bounds):
            # What stands in both is read here while as many pieces follow it here as precede it in
            # the next window; that the other sides are longer then follows.
            shared = np.arange(max(bounds[index + 1][0], read), end)
            after = ends[end - 1] - ends[shared]
            before = starts[shared] - starts[bounds[index + 1][0]]
            read_end = end - int(np.sum(after < before))
        windows.append(Window(first, end, read, read_end))
        read = read_end
    return windows
