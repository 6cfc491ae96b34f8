"""Cleaned documents spilled to disk until all are known: compressed, with hashes to compare."""

import io
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from etils import epath

from bert_jax.files.remote import load_array
from bert_jax.pipelines.sources.documents import Document
from bert_jax.pipelines.tokenised.documents import save_array

DOCUMENTS: Final = "documents"
LINES: Final = "lines"
_TEXT: Final = "documents.jsonl.zst"
_FIRST_LINES: Final = "first_lines.npy"
_WRITE_BYTES: Final = 1 << 18
_MOST_AT_A_TIME: Final = 1 << 19  # hashes


class Spill:
    """Writes documents one by one."""

    def __init__(self, directory: pathlib.Path) -> None:
        import pyarrow as pa  # 50 MB of library, so only where it is needed

        self._directory = directory
        self._lines = 0
        self._first_lines = [0]
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._out: Any = pa.CompressedOutputStream(str(directory / _TEXT), "zstd")

    def add(self, identity: str, document: Document) -> None:
        """Adds a document with its id."""
        text = json.dumps([identity, document.lines], ensure_ascii=True).encode("ascii")
        self._held.append(text)
        self._held_bytes += len(text)
        self._lines += len(document.lines)
        self._first_lines.append(self._lines)
        if self._held_bytes >= _WRITE_BYTES:
            self._flush()

    def close(self) -> None:
        """Writes what is left."""
        self._flush()
        self._out.close()
        save_array(self._directory / _FIRST_LINES, np.array(self._first_lines, np.int64))

    def _flush(self) -> None:
        self._out.write(b"".join(text + b"\n" for text in self._held))
        self._held, self._held_bytes = [], 0


def read_spill(directory: epath.Path) -> Iterator[tuple[str, Document]]:
    """Yields the documents that a :class:`Spill` has written, with their ids."""
    import pyarrow as pa

    with (
        (directory / _TEXT).open("rb") as file,
        pa.CompressedInputStream(pa.PythonFile(file), "zstd") as stream,
    ):
        for line in io.BufferedReader(stream, buffer_size=_WRITE_BYTES):
            identity, lines = json.loads(line)
            yield identity, Document(0, lines)


def first_lines(directory: epath.PathLike) -> np.ndarray:
    """Returns ``[d + 1]`` int64: the number of each document's first line in the spill."""
    return load_array(epath.Path(directory) / _FIRST_LINES)


def save_hashes(directory: pathlib.Path, name: str, hashes: np.ndarray) -> None:
    """Writes ``[n]`` uint64 hashes in ascending order, and the place where each came from."""
    order = np.argsort(hashes, kind="stable")
    save_array(directory / f"{name}.hashes.npy", hashes[order])
    save_array(directory / f"{name}.places.npy", order.astype(np.uint32))


def load_hashes(directory: pathlib.Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Maps the hashes and the places that :func:`save_hashes` has written."""
    return (
        np.load(directory / f"{name}.hashes.npy", mmap_mode="r"),
        np.load(directory / f"{name}.places.npy", mmap_mode="r"),
    )


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
    """Yields everything that was hashed under a name, a range of hashes at a time.

    Each spill's hashes are sorted on disk, so that a range is contiguous in each. About half a
    million are in memory at a time, unless one hash alone occurs more often. The spills come in the
    order of the corpus; ``dropped`` is what to leave out of each, ``[n]`` bool, ``None``: nothing.
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
