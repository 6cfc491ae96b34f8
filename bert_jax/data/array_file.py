"""A ``.npy`` file of which stretches are read: by seeking, so that it need not be local."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import BinaryIO, cast

import numpy as np
from etils import epath


class ArrayFile:
    """An open ``.npy`` file; what is not asked for is not read, nor mapped into memory.

    Its items are rows, so that :mod:`bisect` finds a place in a sorted one.
    """

    def __init__(self, file: BinaryIO) -> None:
        """Reads the header.

        Args:
            file: at its start; an array in C order, as :func:`numpy.save` writes it.

        Raises:
            ValueError: no ``.npy`` file of version 1.0, or an array in another order.
        """
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"npy version {version}, allowed: (1, 0)")
        shape, fortran_order, self.dtype = np.lib.format.read_array_header_1_0(file)
        if fortran_order:
            raise ValueError("array in Fortran order, allowed: C order")
        self._file, self._start = file, file.tell()
        self._length, self._row = shape[0], shape[1:]
        self._row_bytes = self.dtype.itemsize * int(np.prod(self._row, dtype=np.int64))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, row: int) -> np.ndarray:
        return self.read(row, row + 1)[0]

    def read(self, start: int, stop: int) -> np.ndarray:
        """Returns rows ``start`` to ``stop``, both from 0 to the length.

        Raises:
            IndexError: there are no such rows.
            EOFError: the file is shorter than its header says.
        """
        if not 0 <= start <= stop <= self._length:
            raise IndexError(f"rows {start} to {stop} of {self._length}")
        self._file.seek(self._start + start * self._row_bytes)
        wanted = (stop - start) * self._row_bytes
        raw = self._file.read(wanted)
        if len(raw) < wanted:
            raise EOFError(f"array cut short: {len(raw)} bytes instead of {wanted}")
        return np.frombuffer(raw, self.dtype).reshape(stop - start, *self._row)


@contextlib.contextmanager
def open_array(path: epath.PathLike) -> Iterator[ArrayFile]:
    """Opens a ``.npy`` file: see :class:`ArrayFile`."""
    with epath.Path(path).open("rb") as file:
        yield ArrayFile(cast(BinaryIO, file))
