"""Writes features to a temporary file and renames it when it is complete."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bert_jax.errors import UserError
from bert_jax.feature_extraction.extractor import TextFeatures
from bert_jax.feature_extraction.texts import wrong_suffix
from bert_jax.files.atomic import output_exists, unwritable
from bert_jax.inference.comparison import SparseVector, sparse_rows

ROW_GROUP_VALUES: Final = 1 << 22  # float32 values per Parquet row group: 16 MiB
Layout: TypeAlias = Literal["token", "word", "sentence", "sparse"]
UNIT_NAMES: Final[dict[Layout, str]] = {"token": "tokens", "word": "words"}


def check_output(path: Path, *, force: bool) -> None:
    """Raises UserError for an unknown suffix, a missing directory or an existing file."""
    if path.suffix not in WRITERS:
        raise wrong_suffix(path, list(WRITERS))
    if path.is_dir() or (path.exists() and not force):
        raise output_exists(path)
    if not path.parent.is_dir():
        raise UserError(
            "output.no_directory", f"no directory {path.parent}. Create it first.", place=path
        )


@contextlib.contextmanager
def open_writer(path: Path, level: Layout, *, width: int) -> Iterator[FeatureWriter]:
    """Yields a writer for vectors of size `width`. Creates `path` only if the block succeeds.

    Raises UserError if the file cannot be written.
    """
    try:
        with (
            tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as directory,
            contextlib.ExitStack() as files,
        ):
            aside = Path(directory) / path.name
            # If the block raises, `files` closes the open files of the writer.
            writer = WRITERS[path.suffix](aside, files, level, width)
            yield writer
            writer.close()
            aside.replace(path)
    except OSError as error:
        raise unwritable(path, error) from error


class JsonlWriter:
    """Writes one JSON object per text: ``{"index": 0, "vector": […]}``.

    At token level, the keys are ``index``, ``tokens``, ``spans`` and ``vectors``. At word level,
    ``words`` replaces ``tokens``. Sparse vectors have ``pieces`` and ``weights``. Values have nine
    significant digits, which preserves every float32 exactly.
    """

    def __init__(self, path: Path, files: contextlib.ExitStack, level: Layout, width: int) -> None:
        self._file = files.enter_context(path.open("w", encoding="utf-8"))
        self._level: Layout = level
        self._vector = f"[{', '.join(['%.9g'] * width)}]"
        self._index = 0

    def add(self, features: TextFeatures) -> None:
        """Writes the object of a text."""
        if self._level == "sentence":
            rest = f'"vector": {self._vector % tuple(features.vectors[0].tolist())}'
        elif self._level == "sparse":
            weights = ", ".join(f"{weight:.9g}" for weight in features.vectors[0].tolist())
            pieces = json.dumps(features.units, ensure_ascii=False)
            rest = f'"pieces": {pieces}, "weights": [{weights}]'
        else:
            vectors = [self._vector % tuple(vector) for vector in features.vectors.tolist()]
            units = json.dumps(features.units, ensure_ascii=False)
            rest = (
                f'"{UNIT_NAMES[self._level]}": {units}, "spans": {json.dumps(features.spans)}, '
                f'"vectors": [{", ".join(vectors)}]'
            )
        self._file.write(f'{{"index": {self._index}, {rest}}}\n')
        self._index += 1

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class ParquetWriter:
    """Writes one row per text, with the same columns as the keys of `JsonlWriter`."""

    def __init__(self, path: Path, files: contextlib.ExitStack, level: Layout, width: int) -> None:
        self._level: Layout = level
        self._vector = pa.list_(pa.float32(), width)
        fields: list[tuple[str, pa.DataType]] = [("index", pa.int64())]
        if level == "sentence":
            fields.append(("vector", self._vector))
        elif level == "sparse":
            fields += [("pieces", pa.list_(pa.string())), ("weights", pa.list_(pa.float32()))]
        else:
            fields += [
                (UNIT_NAMES[level], pa.list_(pa.string())),
                ("spans", pa.list_(pa.int8())),
                ("vectors", pa.list_(self._vector)),
            ]
        self._schema = pa.schema(fields)
        self._writer = files.enter_context(pq.ParquetWriter(path, self._schema))
        self._buffered: list[TextFeatures] = []
        self._values = 0
        self._index = 0

    def add(self, features: TextFeatures) -> None:
        """Buffers features, and writes a row group when it is full."""
        self._buffered.append(features)
        # Count 64 extra per text: texts without vectors must fill a row group too.
        self._values += features.vectors.size + 64
        if self._values >= ROW_GROUP_VALUES:
            self._flush()

    def close(self) -> None:
        """Writes the last row group and closes the file."""
        if self._buffered:
            self._flush()
        self._writer.close()

    def _flush(self) -> None:
        buffered = self._buffered
        flat = pa.array(np.concatenate([features.vectors.ravel() for features in buffered]))
        units = pa.array([features.units for features in buffered], pa.list_(pa.string()))
        columns = [pa.array(range(self._index, self._index + len(buffered)), pa.int64())]
        if self._level == "sentence":
            columns.append(pa.FixedSizeListArray.from_arrays(flat, type=self._vector))
        elif self._level == "sparse":
            columns += [units, pa.ListArray.from_arrays(units.offsets, flat)]
        else:
            vectors = pa.FixedSizeListArray.from_arrays(flat, type=self._vector)
            ends = np.cumsum([0, *(len(features.vectors) for features in buffered)])
            columns += [
                units,
                pa.array([features.spans for features in buffered], pa.list_(pa.int8())),
                pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), vectors),
            ]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))
        self._index += len(buffered)
        self._buffered, self._values = [], 0


class NpzWriter:
    """Writes `vectors`, float32 [units, width]. Below sentence level, adds offsets, spans, units.

    Text n has the units ``offsets[n]:offsets[n + 1]``. The array's header contains the number of
    units, so vectors are buffered in a temporary file until `close`. Sparse vectors are written as
    by `scipy.sparse.save_npz`.
    """

    def __init__(self, path: Path, files: contextlib.ExitStack, level: Layout, width: int) -> None:
        self._path, self._width = path, width
        self._level: Layout = level
        self._vectors = files.enter_context((path.parent / "vectors").open("w+b"))
        self._offsets, self._spans, self._units = [0], bytearray(), list[str]()
        self._sparse: list[SparseVector] = []

    def add(self, features: TextFeatures) -> None:
        """Adds the features of a text."""
        if features.sparse is not None:
            self._sparse.append(features.sparse)
            return
        self._vectors.write(np.ascontiguousarray(features.vectors, np.float32).tobytes())
        self._offsets.append(self._offsets[-1] + len(features.vectors))
        self._spans += bytes(features.spans)
        self._units += features.units

    def close(self) -> None:
        """Writes the archive."""
        if self._level == "sparse":
            from scipy.sparse import save_npz  # here, because it takes 0.1 s

            save_npz(self._path, sparse_rows(self._sparse), compressed=False)
            return
        shape = (self._offsets[-1], self._width)
        header: dict[str, Any] = {"descr": "<f4", "fortran_order": False, "shape": shape}
        with zipfile.ZipFile(self._path, "w", zipfile.ZIP_STORED) as archive:
            with archive.open("vectors.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, header)
                self._vectors.seek(0)
                shutil.copyfileobj(self._vectors, member)
            if self._level == "sentence":
                return
            others = {
                "offsets": np.asarray(self._offsets, np.int64),
                "spans": np.frombuffer(self._spans, np.int8),
                UNIT_NAMES[self._level]: np.asarray(self._units, np.str_),
            }
            for name, array in others.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)


FeatureWriter: TypeAlias = NpzWriter | ParquetWriter | JsonlWriter
WRITERS: Final[dict[str, type[FeatureWriter]]] = {
    ".npz": NpzWriter,
    ".parquet": ParquetWriter,
    ".jsonl": JsonlWriter,
}
