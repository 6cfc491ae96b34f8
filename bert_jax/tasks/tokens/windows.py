"""Cuts long sentences into windows of whole words."""

from typing import NamedTuple

import numpy as np


class Window(NamedTuple):
    """A window of a sentence, as word indices with exclusive ends."""

    first: int  # start of the window
    end: int
    read: int  # start of the words that this window predicts
    read_end: int


def cut_windows(lengths: np.ndarray, *, room: int, stride: int) -> list[Window]:
    """Cuts a sentence into windows of whole words.

    Ten words of one piece, room 6, stride 4 → windows ``[0:6]`` and ``[4:10]``, which predict
    ``[0:5]`` and ``[5:10]``. The context of a word is the smaller of the numbers of pieces before
    and after it, as in `run_squad.py`. Each word is predicted in the window with its maximum
    context, the earlier one in a tie.

    Args:
        lengths: number of pieces of each word, 1 to `room`, int [words].
        room: number of pieces that fit in a window.
        stride: number of pieces between the starts of windows, 1 to `room`, rounded to whole words.
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
        # Start late enough for the word `end` to fit, but do not skip a word.
        following = max(starts[first] + stride, ends[end] - room)
        first = min(int(np.searchsorted(starts, following)), end)
    windows = []
    read = 0
    for index, (first, end) in enumerate(bounds):
        read_end = end
        if index + 1 < len(bounds):
            # Context of a shared word: the pieces after it in this window, or before it in the next
            # window. The window with the larger context predicts the word.
            shared = np.arange(max(bounds[index + 1][0], read), end)
            after = ends[end - 1] - ends[shared]
            before = starts[shared] - starts[bounds[index + 1][0]]
            read_end = end - int(np.sum(after < before))
        windows.append(Window(first, end, read, read_end))
        read = read_end
    return windows
