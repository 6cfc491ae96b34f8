"""Cleaned documents spilled to disk until all are known: compressed, with hashes to compare."""

import contextlib
import io
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from etils import epath

from bert_jax.files.remote import load_array
from bert_jax.pipelines.sources.documents import Document
from bert_jax.pipelines.tokenised.documents import save_array, starts_of

DOCUMENTS: Final = "documents"
LINES: Final = "lines"
_TEXT: Final = "documents.jsonl.zst"
_FIRST_LINES: Final = "first_lines.npy"
_BUFFER_BYTES: Final = 1 << 18
_MOST_AT_A_TIME: Final = 1 << 19  # hashes


@contextlib.contextmanager
def write_spill(directory: pathlib.Path) -> Iterator[Callable[[str, list[str]], None]]:
    """Gives a function that spills a document: its id and its lines."""
    import pyarrow as pa  # 50 MB of library, so only where it is needed

    lines = [0]
    out: Any = pa.CompressedOutputStream(str(directory / _TEXT), "zstd")
    with out, io.BufferedWriter(out, _BUFFER_BYTES) as file:

        def add(identity: str, text: list[str]) -> None:
            file.write(json.dumps([identity, text], ensure_ascii=True).encode("ascii") + b"\n")
            lines.append(len(text))

        yield add
    save_array(directory / _FIRST_LINES, np.cumsum(lines, dtype=np.int64))


def read_spill(directory: epath.Path) -> Iterator[tuple[str, Document]]:
    """Yields the ids and documents of :func:`write_spill`."""
    import pyarrow as pa

    with (
        (directory / _TEXT).open("rb") as file,
        pa.CompressedInputStream(pa.PythonFile(file), "zstd") as stream,
    ):
        for line in io.BufferedReader(stream, buffer_size=_BUFFER_BYTES):
            identity, lines = json.loads(line)
            yield identity, Document(0, lines)


def first_lines(directory: epath.PathLike) -> np.ndarray:
    """Returns ``[d + 1]`` int64: the number of each document's first line in the spill."""
    return load_array(epath.Path(directory) / _FIRST_LINES)


def save_hashes(directory: pathlib.Path, name: str, hashes: np.ndarray) -> None:
    """Writes ``[n]`` uint64 hashes in ascending order, and the place of each in the spill."""
    order = np.argsort(hashes, kind="stable")
    save_array(directory / f"{name}.hashes.npy", hashes[order])
    save_array(directory / f"{name}.places.npy", order.astype(np.uint32))


def repetitions(
    spills: Sequence[pathlib.Path], name: str, *, dropped: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields two arrays of numbers: things whose hash an earlier thing has, and that first thing.

    Things are numbered through all spills, which come in the order of the corpus. A thing in
    ``dropped``, ``[things]`` bool, neither repeats nor is repeated. The hashes of a spill are
    sorted on disk, so a range of hashes is contiguous in each. About half a million hashes are in
    memory at a time, unless one hash alone occurs more often.
    """
    hashes, places = (
        [np.load(spill / f"{name}.{kind}.npy", mmap_mode="r") for spill in spills]
        for kind in ("hashes", "places")
    )
    before = starts_of(list(map(len, hashes)))
    count = max(1, -(-int(before[-1]) // _MOST_AT_A_TIME))
    starts = [0] * len(spills)
    for number in range(1, count + 1):
        limit = np.uint64((2**64 * number // count) - 1)
        stops = [int(np.searchsorted(held, limit, side="right")) for held in hashes]
        found = np.concatenate([h[a:b] for h, a, b in zip(hashes, starts, stops, strict=True)])
        numbers = np.concatenate(
            [p[a:b] + at for p, a, b, at in zip(places, starts, stops, before, strict=False)]
        )
        starts = stops
        kept = ~dropped[numbers]
        found, numbers = found[kept], numbers[kept]
        order = np.argsort(found, kind="stable")  # so equal hashes stay in the order of the corpus
        found, numbers = found[order], numbers[order]
        again = np.zeros(len(found), bool)
        again[1:] = found[1:] == found[:-1]
        firsts = np.maximum.accumulate(np.where(again, 0, np.arange(len(found))))
        yield numbers[again], numbers[firsts[again]]
