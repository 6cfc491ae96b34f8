"""Cleaned documents spilled to disk until all are known: compressed, with their hashes."""

import io
import json
import pathlib
from collections.abc import Iterator
from typing import Any, Final

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
