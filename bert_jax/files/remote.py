"""Directories that may lie in a bucket: where they differ from those of this machine."""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

import numpy as np
from etils import epath
from fsspec.config import conf

Result = TypeVar("Result")

# What gcsfs remembers of a directory is wrong as soon as another machine has written there.
conf.setdefault("gcs", {})["use_listings_cache"] = False

_THREADS: Final = 32


def is_remote(path: epath.PathLike) -> bool:
    """Whether a path is an object's: ``gs://bucket/name``."""
    return "://" in os.fspath(path)


def load_array(path: epath.Path) -> np.ndarray:
    """Reads a ``.npy`` file into memory."""
    return np.load(io.BytesIO(path.read_bytes()))


def each(function: Callable[[epath.Path], Result], paths: Sequence[epath.Path]) -> Iterator[Result]:
    """Yields what the function reads of every path, in their order.

    In a bucket many are read at once, since each read takes its time.
    """
    if not any(map(is_remote, paths)):
        yield from map(function, paths)
        return
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
        yield from threads.map(function, paths)


@contextlib.contextmanager
def local_copies(
    directories: Sequence[epath.PathLike], names: Iterable[str]
) -> Iterator[list[pathlib.Path]]:
    """Gives directories on this machine in which some files can be mapped into memory.

    Args:
        directories: what to copy; one that is local is given as it is.
        names: globs of the files that are needed.
    """
    with contextlib.ExitStack() as stack:
        yield [
            pathlib.Path(directory)
            if not is_remote(directory)
            else _copy(
                epath.Path(directory), names, stack.enter_context(tempfile.TemporaryDirectory())
            )
            for directory in directories
        ]


def _copy(directory: epath.Path, names: Iterable[str], to: str) -> pathlib.Path:
    for name in names:
        for path in directory.glob(name):
            target = epath.Path(to) / path.relative_to(directory)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.copy(target)
    return pathlib.Path(to)
