"""Samples a corpus in bounded memory: uniformly, or with smoothed shares of its languages."""

import heapq
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from bert_jax.errors import UserError, all_of
from bert_jax.pipelines.shards.language_mixture import boosts

MAX_PART_CHARACTERS = 2048
MAX_PART_BYTES = 4 * MAX_PART_CHARACTERS  # UTF-8


def cut_line(line: str, *, limit: int = MAX_PART_CHARACTERS) -> Iterator[str]:
    """Cuts a line into non-blank parts of up to ``limit`` characters, at spaces if possible.

    ``cut_line("to be or not", limit=6) -> "to be", "or not"``
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
    """Returns a uniform sample within ``max_lines`` and ``max_bytes``, in corpus order.

    If the whole corpus fits, it is returned. The method is bottom-k sampling: every part gets a
    random rank, and the parts with the lowest ranks stay. The same corpus and seed give the same
    sample.

    Args:
        lines: lines of the corpus. A long line is cut into several parts.
        max_lines: maximum number of parts.
        max_bytes: maximum bytes of UTF-8 in all parts.
        seed: seed of the ranks.
    """
    ranks = random.Random(seed)
    kept: list[tuple[float, int, str]] = []  # heap of (-rank, index, part), highest rank first
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
    """Size of a text."""

    parts: int  # number of parts that `cut_line` makes
    bytes: int  # bytes of UTF-8


def measure(lines: Iterable[str]) -> TextSize:
    """Measures a text with one line in memory at a time."""
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
    """Returns a sample in which each language has its smoothed share of the bytes.

    The sample is ordered by language. If ``max_lines`` and ``max_bytes`` allow, it has as many
    bytes as the corpus. If a language's share exceeds its text, the text is repeated as often as it
    fits, and a uniform sample fills the rest. The same text and seed give the same sample.

    Args:
        languages: function per language that returns a new iterable of its lines. It is called
            twice: to measure the text, and to sample it.
        smoothing: exponent of the shares.
        max_lines: maximum number of parts in all languages together.
        max_bytes: maximum bytes of UTF-8 in all parts together.
        seed: seed of the samples.

    Raises UserError if a language has no text.
    """
    sizes = {language: measure(open_lines()) for language, open_lines in languages.items()}
    if empty := [language for language, size in sizes.items() if not size.bytes]:
        raise UserError(
            "vocab.language_empty", f"found no text in the files of {all_of(empty)}", place="input"
        )
    wanted = _wanted(sizes, smoothing=smoothing, max_lines=max_lines, max_bytes=max_bytes)
    sample: list[str] = []
    for language, open_lines in languages.items():
        size, left = sizes[language], wanted[language]
        # Repeat the whole text as often as both bounds allow.
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
    # Boosts keep the total number of bytes, so the unscaled sample is as large as the corpus.
    # `scale` shrinks it to the limits.
    total_bytes = sum(size.bytes for size in sizes.values())
    parts = {name: size.parts * boost[name] for name, size in sizes.items()}
    total_parts = sum(parts.values())
    scale = min(1.0, max_bytes / total_bytes, max_lines / total_parts)
    return {
        name: TextSize(
            # Not scaled to `max_bytes`, because the sampled parts may be shorter than average.
            parts=math.floor(max_lines * (parts[name] / total_parts)),
            bytes=math.floor(size.bytes * (boost[name] * scale)),
        )
        for name, size in sizes.items()
    }


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
