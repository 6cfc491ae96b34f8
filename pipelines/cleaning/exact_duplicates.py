"""Which documents or lines repeat an earlier one: found by hash, in bounded memory."""

import pathlib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from bert_jax.pipelines.cleaning.spill import load_hashes

_MOST_AT_A_TIME: Final = 1 << 19


class HashRange(NamedTuple):
    """Everything with a hash in some range, in the order of hash, spill and place."""

    hashes: np.ndarray  # `[n]` uint64
    spills: np.ndarray  # `[n]` int64: number of the spill that each is from
    places: np.ndarray  # `[n]` int64: its place there

    def firsts(self) -> np.ndarray:
        """Returns ``[n]`` int64: the position in the range of the first with the same hash."""
        starts = np.ones(len(self.hashes), bool)
        starts[1:] = self.hashes[1:] != self.hashes[:-1]
        return np.maximum.accumulate(np.where(starts, np.arange(len(starts)), 0))


def hash_ranges(
    spills: Sequence[pathlib.Path], name: str, *, dropped: Sequence[np.ndarray | None]
) -> Iterator[HashRange]:
    """Yields everything that was hashed, a range of hashes at a time.

    Each spill's hashes are sorted on disk, so that a range is contiguous in each. About half a
    million are in memory at a time, unless one hash alone occurs more often.

    Args:
        spills: directories, in the order of the corpus.
        name: of what was hashed.
        dropped: for each spill ``[n]`` bool, what to leave out; ``None``: nothing.
    """
    held = [load_hashes(spill, name) for spill in spills]
    total = sum(len(hashes) for hashes, _ in held)
    count = max(1, -(-total // _MOST_AT_A_TIME))
    starts = np.zeros(len(held), np.int64)
    for number in range(1, count + 1):
        limit = np.uint64((2**64 * number // count) - 1)
        pieces = []
        for spill, (hashes, places) in enumerate(held):
            stop = int(np.searchsorted(hashes, limit, side="right"))
            some = np.asarray(hashes[starts[spill] : stop])
            where = np.asarray(places[starts[spill] : stop]).astype(np.int64)
            starts[spill] = stop
            if (gone := dropped[spill]) is not None:
                some, where = some[~gone[where]], where[~gone[where]]
            pieces.append((some, np.full(len(some), spill), where))
        hashes, numbers, places = (np.concatenate(column) for column in zip(*pieces, strict=True))
        # Stable, and the pieces come in the order of the corpus.
        order = np.argsort(hashes, kind="stable")
        yield HashRange(hashes[order], numbers[order], places[order])


def find_repeats(
    spills: Sequence[pathlib.Path],
    name: str,
    *,
    sizes: Sequence[int],
    dropped: Sequence[np.ndarray | None],
) -> list[np.ndarray]:
    """Returns for each spill, of ``sizes`` things, ``[n]`` bool: what repeats something earlier.

    What is ``dropped`` (see :func:`hash_ranges`) is neither a repetition nor repeated.
    """
    repeats = [np.zeros(size, bool) for size in sizes]
    for part in hash_ranges(spills, name, dropped=dropped):
        later = np.flatnonzero(part.firsts() != np.arange(len(part.hashes)))
        # Sorted by spill, instead of a search for each spill's own.
        later = later[np.argsort(part.spills[later], kind="stable")]
        edges = np.searchsorted(part.spills[later], np.arange(len(repeats) + 1))
        for spill in np.unique(part.spills[later]).tolist():
            repeats[spill][part.places[later[edges[spill] : edges[spill + 1]]]] = True
    return repeats
