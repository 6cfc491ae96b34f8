"""Helpers for paths that may be local or in a bucket."""

import concurrent.futures
import contextlib
import importlib.util
import io
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import fsspec
import numpy as np
from etils import epath
from fsspec.config import conf

from bert_jax.errors import SettingError, UserError, not_installed
from bert_jax.places import CLIENTS, check_place

Result = TypeVar("Result")

# Use one client for all ``gs://`` paths. If TensorFlow is installed, etils would by default use
# TensorFlow's client, which has other errors, retries and credentials.
os.environ.setdefault("EPATH_USE_TF", "0")
for _name in ("gcs", "gs"):
    fsspec.register_implementation(_name, "bert_jax.files.bucket.Bucket", clobber=True)
    # A cached listing becomes outdated when another machine writes to the bucket.
    conf.setdefault(_name, {})["use_listings_cache"] = False


class _Absent(fsspec.AbstractFileSystem):
    """A file system whose client library is not installed. Opening it raises UserError."""

    def __init__(self, *_: Any, **__: Any) -> None:
        name, client = str(self.protocol), CLIENTS[str(self.protocol)]
        if name == "hf":
            raise not_installed(client, "hf://", extra="hub")
        raise UserError(
            "install.client",
            f"not installed, but {name}:// needs it. Run `pip install {client}`.",
            place=client,
        )


# Replace only file systems whose client library is missing.
for _name, _client in CLIENTS.items():
    if importlib.util.find_spec(_client) is None:
        _absent = type(f"Absent{_name.capitalize()}", (_Absent,), {"protocol": _name})
        fsspec.register_implementation(_name, _absent, clobber=True)

# Pass an emulator's URL to tensorstore, and set its time-outs. By default it has no time-out.
if _emulator := os.environ.get("STORAGE_EMULATOR_HOST"):
    os.environ.setdefault("TENSORSTORE_GCS_HTTP_URL", _emulator)
os.environ.setdefault("TENSORSTORE_CURL_CONNECT_TIMEOUT_SECONDS", "30")
os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", "60")
os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1")

_THREADS: Final = 32


def is_remote(path: epath.PathLike) -> bool:
    """Returns whether a path is a URL, such as ``gs://bucket/name``."""
    return "://" in os.fspath(path)


def within(path: epath.PathLike) -> str:
    """Returns where a relative path starts, for messages: ``" in /home/me"``; else ``""``."""
    is_relative = not is_remote(path) and not os.path.isabs(path)
    return f" in {os.getcwd()}" if is_relative else ""


def require_place(path: epath.PathLike, *, hub: str = "") -> None:
    """Raises UserError for an unsupported URL; see `bert_jax.places.check_place`."""
    try:
        check_place(os.fspath(path), hub=hub)
    except SettingError as error:
        raise error.at("") from None


def require_local(path: str, *, verb: str) -> None:
    """Raises UserError if a path of a verb is remote."""
    if is_remote(path):
        raise UserError.wrong("path.not_local", f'"{path}"', "a local path", place=verb)


def absolute(path: str) -> str:
    """Expands ``~`` and makes a local path absolute. Returns a remote path unchanged."""
    return path if is_remote(path) else os.path.abspath(os.path.expanduser(path))


def load_array(path: epath.Path) -> np.ndarray:
    """Reads a ``.npy`` file into memory."""
    return np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)


class FileState(NamedTuple):
    """Values that change with the content of a file."""

    bytes: int
    modified: int | None = None
    """Time of the last change since 1970: in nanoseconds, in a bucket in seconds. None on a hub,
    whose paths have a commit."""


def file_state(path: epath.Path) -> FileState:
    """Returns the state of a local file, or of a file in a bucket. Raises OSError."""
    if is_remote(path):
        found = path.stat()
        return FileState(found.length, int(found.mtime))
    local = os.stat(path)
    return FileState(local.st_size, local.st_mtime_ns)


def each(function: Callable[[epath.Path], Result], paths: Sequence[epath.Path]) -> Iterator[Result]:
    """Yields ``function(path)`` for every path, in order. Remote paths run in 32 threads."""
    if not any(map(is_remote, paths)):
        yield from map(function, paths)
        return
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
        yield from threads.map(function, paths)


@contextlib.contextmanager
def local_copies(
    directories: Sequence[epath.PathLike], patterns: Iterable[str]
) -> Iterator[list[pathlib.Path]]:
    """Yields a local directory for each directory, so that files can be memory-mapped.

    Copies the files of a remote directory that match ``patterns`` to a temporary directory, which
    exists during the block.
    """
    with contextlib.ExitStack() as stack:
        local = []
        for directory in directories:
            if is_remote(directory):
                copy = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
                for path in (p for name in patterns for p in epath.Path(directory).glob(name)):
                    target = copy / path.relative_to(directory)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    path.copy(target)
                directory = copy
            local.append(pathlib.Path(directory))
        yield local
