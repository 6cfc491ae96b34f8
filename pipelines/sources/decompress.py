"""Files as bytes, decompressed by suffix: gzip, bzip2, xz and Zstandard."""

import bz2
import contextlib
import gzip
import io
import lzma
import os
import pathlib
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final, NamedTuple, cast

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.read import require_file


class _Packing(NamedTuple):
    name: str
    unpack: Callable[[BinaryIO], BinaryIO]


def _unpack_zstd(raw: BinaryIO) -> BinaryIO:
    import pyarrow as pa  # 50 MB of library in every worker, so only where it is needed

    # Arrow's, since Python has none of its own before 3.14 and Arrow is here for Parquet anyway.
    stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
    return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, stream), buffer_size=1 << 16))


_PACKINGS: Final[dict[str, _Packing]] = {
    ".gz": _Packing("gzip", lambda raw: cast(BinaryIO, gzip.GzipFile(fileobj=raw))),
    ".bz2": _Packing("bzip2", lambda raw: cast(BinaryIO, bz2.BZ2File(raw))),
    # `open_text` closes it.
    ".xz": _Packing("xz", lambda raw: cast(BinaryIO, lzma.LZMAFile(raw))),  # noqa: SIM115
    ".zst": _Packing("Zstandard", _unpack_zstd),
}


def is_packed(path: str) -> bool:
    """Whether a file's name says that it is packed: ``"a.txt.gz" -> True``."""
    return pathlib.PurePath(path).suffix in _PACKINGS


def bare_suffix(path: str) -> str:
    """Returns the suffix below the packing, in lower case: ``"dump.XML.bz2" -> ".xml"``."""
    pure = pathlib.PurePath(path)
    return (pure.with_suffix("") if is_packed(path) else pure).suffix.lower()


@contextlib.contextmanager
def open_text(path: str) -> Iterator[BinaryIO]:
    """Opens a file's bytes, unpacked as its name says (``.gz``, ``.bz2``, ``.xz``, ``.zst``).

    Raises UserError: the file cannot be read or, on reading, is damaged or cut short.
    """
    require_file(path)
    packing = _PACKINGS.get(pathlib.PurePath(path).suffix)
    try:
        with epath.Path(path).open("rb") as raw:
            if packing is None:
                yield cast(BinaryIO, raw)
            else:
                with packing.unpack(cast(BinaryIO, raw)) as unpacked:
                    yield unpacked
    except OSError as error:
        # The libraries' own complaints about content have no number of the system's.
        if packing is not None and error.errno is None:
            raise _damaged(path, packing, error) from error
        reason = os.strerror(error.errno).lower() if error.errno else error
        raise UserError(f"{path}: cannot be read ({reason})") from error
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        if packing is None:
            raise
        raise _damaged(path, packing, error) from error


def _damaged(path: str, packing: _Packing, error: Exception) -> UserError:
    return UserError(f"{path}: damaged {packing.name} file ({error})")
