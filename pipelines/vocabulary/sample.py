"""A sample of a corpus in bounded memory: uniform, or with smoothed shares of its languages."""

import heapq
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from bert_jax.errors import UserError
from bert_jax.pipelines.shards.language_mixture import boosts

MAX_PART_CHARACTERS = 2048
MAX_PART_BYTES = 4 * MAX_PART_CHARACTERS  # UTF-8


def cut_line(line: str, *, limit: int = MAX_PART_CHARACTERS) -> Iterator[str]:
    """Yields the parts of a long line, cut at spaces; no part is blank.

    ``cut_line("to be or not", limit=6)`` -> ``to be``, ``or not``
    """
    start = 0
    while start < len(line):
        end = following = start + limit
        if end < len(line) and (space := line.rfind(" ", start, end + 1)) >= start:
            end, following = space, space + 1
        if part := line[start:end].strip():
            yield part
        start = following


def sample_lines(lines: Iterable[str], *, max_lines: int, max_bytes: int, seed: int) -> list[str]:
    """Returns a uniform sample within both bounds, in corpus order; all of the corpus if it fits.

    Bottom-k sampling: every part gets a random rank, and parts below a falling threshold stay. Long
    lines count as several parts. ``max_lines`` bounds the number of parts, ``max_bytes`` their size
    in UTF-8. The same corpus and seed give the same sample.
    """
    ranks = random.Random(seed)
    kept: list[tuple[float, int, str]] = []  # a heap with the highest rank first, hence -rank
    kept_bytes, threshold = 0, 1.0
    for index, part in enumerate(part for line in lines for part in cut_line(line)):
        rank = ranks.random()
        if rank >= threshold:
            continue
        heapq.heappush(kept, (-rank, index, part))
        kept_bytes += _size(part)
        while kept and (len(kept) > max_lines or kept_bytes > max_bytes):
            highest, _, dropped = heapq.heappop(kept)
            kept_bytes -= _size(dropped)
            threshold = -highest
    return [part for _, _, part in sorted(kept, key=lambda item: item[1])]


class TextSize(NamedTuple):
    """How much text there is."""

    parts: int  # as `cut_line` cuts it
    bytes: int  # UTF-8


def measure(lines: Iterable[str]) -> TextSize:
    """Returns the size of a text, with one line in memory at a time."""
    parts = total = 0
    for part in (part for line in lines for part in cut_line(line)):
        parts, total = parts + 1, total + _size(part)
    return TextSize(parts, total)


def sample_mixture(
    languages: Mapping[str, Callable[[], Iterable[str]]],
    *,
    smoothing: float,
    max_lines: int,
    max_bytes: int,
    seed: int,
) -> list[str]:
    """Returns a sample, language by language, in which each has its smoothed share of the bytes.

    The text is read twice, first for its size: each of ``languages`` opens its lines from the
    start. The sample has as many bytes as the corpus, or as the bounds of :func:`sample_lines`
    allow for all languages together. A language whose share exceeds its text has all of it, as
    often as it fits, and a uniform sample for the rest. The same text and seed give the same
    sample. Raises UserError: a language has no text.
    """
    sizes = {language: measure(open_lines()) for language, open_lines in languages.items()}
    if empty := [language for language, size in sizes.items() if not size.bytes]:
        raise UserError(
            "vocab.language_empty",
            "found no text in the files of {languages:and}",
            place="input",
            languages=empty,
        )
    wanted = _wanted(sizes, smoothing=smoothing, max_lines=max_lines, max_bytes=max_bytes)
    sample: list[str] = []
    for language, open_lines in languages.items():
        size, left = sizes[language], wanted[language]
        # All of the text as often as both bounds allow.
        whole = min(left.parts // size.parts, left.bytes // size.bytes)
        lines = open_lines()
        if whole:
            lines = [part for line in lines for part in cut_line(line)]
            sample += lines * whole
        sample += sample_lines(
            lines,
            max_lines=left.parts - whole * size.parts,
            max_bytes=left.bytes - whole * size.bytes,
            seed=seed,
        )
    return sample


def _wanted(
    sizes: Mapping[str, TextSize], *, smoothing: float, max_lines: int, max_bytes: int
) -> dict[str, TextSize]:
    boost = boosts({name: size.bytes for name, size in sizes.items()}, smoothing=smoothing)
    # For a mixture as large as the corpus. With short lines, their number is the narrower bound.
    total_bytes = sum(size.bytes for size in sizes.values())
    parts = {name: size.parts * boost[name] for name, size in sizes.items()}
    total_parts = sum(parts.values())
    scale = min(1.0, max_bytes / total_bytes, max_lines / total_parts)
    return {
        name: TextSize(
            # Not scaled by the bytes: that leaves room for parts shorter than the mean.
            parts=math.floor(max_lines * (parts[name] / total_parts)),
            bytes=math.floor(size.bytes * (boost[name] * scale)),
        )
        for name, size in sizes.items()
    }


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
