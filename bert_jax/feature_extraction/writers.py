"""Features to a file, written as they come and there only once it is whole."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, Protocol

import numpy as np

from bert_jax.errors import UserError
from bert_jax.feature_extraction.extractor import Feature, Level

SUFFIXES: Final = (".npz", ".parquet", ".jsonl")
GROUP_VALUES: Final = 1 << 22  # numbers in a Parquet row group: 16 MiB
NAMES: Final[dict[Level, str]] = {"token": "tokens", "word": "words"}


class Sink(Protocol):
    """Takes features in order."""

    def add(self, feature: Feature) -> None:
        """Writes one."""
        ...

    def close(self) -> None:
        """Writes what was kept back; the file is whole afterwards."""
        ...


def check_output(path: Path, *, force: bool) -> None:
    """Refuses a place that features cannot be written to, before any are computed.

    Raises:
        UserError: another suffix than .npz, .parquet, .jsonl; something is there and `force` is
            False; no such directory.
    """
    if path.suffix not in SUFFIXES:
        raise UserError(
            f"{path}: found {path.suffix or 'no suffix'}, allowed: {', '.join(SUFFIXES)}"
        )
    if path.is_dir() or (path.exists() and not force):
        raise UserError(f"{path}: is already there; allowed: a new file, or --force")
    if not path.parent.is_dir():
        raise UserError(f"{path}: found no directory {path.parent}, allowed: one that is there")


@contextlib.contextmanager
def open_sink(path: Path, *, level: Level, width: int) -> Iterator[Sink]:
    """Gives a sink whose file appears at `path` once the block has ended well.

    Args:
        path: by whose suffix the format is chosen.
        level: of the features.
        width: numbers in a vector.

    Raises:
        UserError: the disk is full, or the place cannot be written to.
    """
    kinds: dict[str, Any] = {".npz": NpzSink, ".parquet": ParquetSink, ".jsonl": JsonlSink}
    try:
        with (
            tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as directory,
            contextlib.ExitStack() as files,
        ):
            aside = Path(directory) / path.name
            sink: Sink = kinds[path.suffix](aside, files, level=level, width=width)
            yield sink
            sink.close()
            aside.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from error


class JsonlSink:
    """A line per text: ``{"index": 0, "vector": […]}``, or ``tokens``, ``spans``, ``vectors``.

    Nine digits tell any two float32 apart.
    """

    def __init__(
        self, path: Path, stack: contextlib.ExitStack, *, level: Level, width: int
    ) -> None:
        self._file = stack.enter_context(path.open("w", encoding="utf-8"))
        self._level: Level = level
        self._vector = f"[{', '.join(['%.9g'] * width)}]"
        self._index = 0

    def add(self, feature: Feature) -> None:
        """Writes a line."""
        vectors = [self._vector % tuple(vector) for vector in feature.vectors.tolist()]
        if self._level == "sentence":
            rest = f'"vector": {vectors[0]}'
        else:
            units = json.dumps(feature.units, ensure_ascii=False)
            spans = json.dumps(feature.spans)
            rest = (
                f'"{NAMES[self._level]}": {units}, "spans": {spans}, '
                f'"vectors": [{", ".join(vectors)}]'
            )
        self._file.write(f'{{"index": {self._index}, {rest}}}\n')
        self._index += 1

    def close(self) -> None:
        """Ends the file."""
        self._file.close()


class ParquetSink:
    """A row per text: `index`, and `vector`, or `tokens`, `spans`, `vectors`."""

    def __init__(
        self, path: Path, stack: contextlib.ExitStack, *, level: Level, width: int
    ) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._level: Level = level
        self._pa = pa
        vector = pa.list_(pa.float32(), width)
        fields = [("index", pa.int64())]
        if level == "sentence":
            fields.append(("vector", vector))
        else:
            fields += [
                (NAMES[level], pa.list_(pa.string())),
                ("spans", pa.list_(pa.int8())),
                ("vectors", pa.list_(vector)),
            ]
        self._schema = pa.schema(fields)
        self._vector = vector
        self._writer = stack.enter_context(pq.ParquetWriter(path, self._schema))
        self._kept: list[Feature] = []
        self._values = 0
        self._index = 0

    def add(self, feature: Feature) -> None:
        """Keeps a feature until a row group is full."""
        self._kept.append(feature)
        # Texts of no words count too, or a file of them would be kept whole.
        self._values += feature.vectors.size + 64
        if self._values >= GROUP_VALUES:
            self._flush()

    def close(self) -> None:
        """Writes the last row group and the file's end."""
        if self._kept:
            self._flush()
        self._writer.close()

    def _flush(self) -> None:
        pa, kept = self._pa, self._kept
        flat = np.concatenate([feature.vectors for feature in kept]).ravel()
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(flat), type=self._vector)
        columns = [pa.array(range(self._index, self._index + len(kept)), pa.int64())]
        if self._level == "sentence":
            columns.append(vectors)
        else:
            ends = np.cumsum([0, *(len(feature.vectors) for feature in kept)]).astype(np.int32)
            columns += [
                pa.array([feature.units for feature in kept], pa.list_(pa.string())),
                pa.array([feature.spans for feature in kept], pa.list_(pa.int8())),
                pa.ListArray.from_arrays(pa.array(ends), vectors),
            ]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))
        self._index += len(kept)
        self._kept, self._values = [], 0


class NpzSink:
    """`vectors` float32 [units, width]; for pieces and words `offsets`, `spans` and the units.

    Text n's units are ``offsets[n]`` to ``offsets[n + 1]``. An array's header says how long it is,
    so the numbers lie in files beside until that is known.
    """

    def __init__(
        self, path: Path, stack: contextlib.ExitStack, *, level: Level, width: int
    ) -> None:
        self._path = path
        self._level: Level = level
        self._width = width
        self._parts = {
            name: stack.enter_context((path.parent / name).open("w+b"))
            for name in ("vectors", "offsets", "spans", "units")
        }
        self._units = 0
        self._texts = 0
        self._longest = 1
        self._write("offsets", np.zeros(1, np.int64))

    def add(self, feature: Feature) -> None:
        """Appends to the arrays."""
        self._write("vectors", np.ascontiguousarray(feature.vectors, np.float32))
        self._units += len(feature.vectors)
        self._texts += 1
        if self._level == "sentence":
            return
        self._write("offsets", np.asarray([self._units], np.int64))
        self._write("spans", np.asarray(feature.spans, np.int8))
        self._longest = max([self._longest, *map(len, feature.units)])
        self._parts["units"].writelines(json.dumps(unit).encode() + b"\n" for unit in feature.units)

    def close(self) -> None:
        """Writes the archive."""
        with zipfile.ZipFile(self._path, "w", zipfile.ZIP_STORED) as archive:
            self._member(archive, "vectors", np.dtype(np.float32), (self._units, self._width))
            if self._level != "sentence":
                self._member(archive, "offsets", np.dtype(np.int64), (self._texts + 1,))
                self._member(archive, "spans", np.dtype(np.int8), (self._units,))
                self._strings(archive, NAMES[self._level])

    def _write(self, name: str, array: np.ndarray) -> None:
        self._parts[name].write(array.tobytes())

    def _member(
        self, archive: zipfile.ZipFile, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> None:
        source = self._parts[name]
        source.seek(0)
        with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
            _header(member, dtype, shape)
            shutil.copyfileobj(source, member, 1 << 20)

    def _strings(self, archive: zipfile.ZipFile, name: str) -> None:
        """Writes the units as strings of the longest's width, which NumPy reads unpickled."""
        source = self._parts["units"]
        source.seek(0)
        dtype = np.dtype(f"<U{self._longest}")
        with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
            _header(member, dtype, (self._units,))
            for line in source:
                member.write(np.asarray([json.loads(line)], dtype).tobytes())


def _header(file: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    np.lib.format.write_array_header_1_0(
        file, {"descr": dtype.str, "fortran_order": False, "shape": shape}
    )
