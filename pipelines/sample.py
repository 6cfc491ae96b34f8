"""A uniform sample of a corpus in one pass and bounded memory."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator

MAX_PART_CHARACTERS = 2048
MAX_PART_BYTES = 4 * MAX_PART_CHARACTERS  # UTF-8


def cut_line(line: str, *, limit: int = MAX_PART_CHARACTERS) -> Iterator[str]:
    """Cuts a long line at spaces: ``cut_line("to be or not", limit=6)`` -> ``to be``, ``or not``.

    Args:
        line: any text without line ends.
        limit: characters that a part may have; a longer run without a space is cut where it is.

    Yields:
        Parts with something but white space in them.
    """
    start = 0
    while len(line) - start > limit:
        space = line.rfind(" ", start, start + limit + 1)
        end, following = (space, space + 1) if space >= start else (start + limit, start + limit)
        if part := line[start:end].strip():
            yield part
        start = following
    if part := line[start:].strip():
        yield part


def sample_lines(lines: Iterable[str], *, max_lines: int, max_bytes: int, seed: int) -> list[str]:
    """Keeps a uniform sample that fits both bounds; the whole corpus where it fits.

    Every part gets a random rank, and those under a falling threshold stay (bottom-k sampling), so
    that what was read so far can be forgotten at any time. Long lines count as several.

    Args:
        lines: the corpus, read once; blank lines are dropped.
        max_lines: parts of at most ``MAX_PART_CHARACTERS`` to keep.
        max_bytes: UTF-8 bytes to keep.
        seed: of the ranks; the same corpus and seed give the same sample.

    Returns:
        The sample, in the order of the corpus.
    """
    ranks = random.Random(seed)
    kept: list[tuple[float, int, str]] = []  # a heap with the highest rank first, hence -rank
    kept_bytes = 0
    threshold = 1.0
    index = 0
    for line in lines:
        for part in cut_line(line):
            rank = ranks.random()
            index += 1
            if rank >= threshold:
                continue
            heapq.heappush(kept, (-rank, index, part))
            kept_bytes += _size(part)
            while kept and (len(kept) > max_lines or kept_bytes > max_bytes):
                highest, _, dropped = heapq.heappop(kept)
                kept_bytes -= _size(dropped)
                threshold = -highest
    return [part for _, _, part in sorted(kept, key=lambda item: item[1])]


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
