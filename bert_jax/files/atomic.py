"""Files and directories that appear whole, also in a bucket; a full disk said in one line."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from typing import Final

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.remote import is_remote

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_UNFINISHED: Final = ".tmp"


@contextlib.contextmanager
def disk_errors(path: epath.PathLike) -> Iterator[None]:
    """Turns the errors of a full disk, a quota or a size limit into a ``UserError``.

    The error names ``path``. Errors that a C++ writer reports as the text of a
    ``RuntimeError`` are turned too. Other errors pass.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        if isinstance(error, OSError):
            reason = os.strerror(error.errno) if error.errno in _FULL else None
        else:
            reason = next((t for t in map(os.strerror, _FULL) if t in str(error)), None)
        if reason is None:
            raise
        raise UserError(
            f"{path}: {reason.lower()} while writing; make room and run again; finished parts stay"
        ) from error


@contextlib.contextmanager
def whole_file(target: epath.PathLike) -> Iterator[pathlib.Path]:
    """Gives a local name to write to; the file appears as ``target`` once the block has ended well.

    Raises:
        UserError: the disk is full.
    """
    target = epath.Path(target)
    with _aside(target) as aside:
        yield aside
        if is_remote(target):
            epath.Path(aside).copy(target, overwrite=True)
        else:
            aside.replace(target)


@contextlib.contextmanager
def whole_directory(target: epath.PathLike, *, last: str) -> Iterator[pathlib.Path]:
    """Gives a local directory to fill, which appears as ``target`` once the block has ended well.

    If it is there by then, another worker has done the same job, and this one's work is dropped.

    Args:
        target: the directory.
        last: the file in it that says that it is whole: see :func:`is_whole`. A bucket cannot
            rename a directory; there this file is written after all others.

    Raises:
        UserError: the disk is full.
    """
    target = epath.Path(target)
    with _aside(target) as aside:
        aside.mkdir()
        yield aside
        if is_remote(target):
            _upload(aside, target, last=last)
            return
        try:
            aside.rename(target)
        except OSError:
            if not is_whole(target, last=last):
                raise


def is_whole(directory: epath.PathLike, *, last: str) -> bool:
    """Whether :func:`whole_directory` has made a directory."""
    return (epath.Path(directory) / last).exists()


def write_aside(path: epath.PathLike, content: str | bytes) -> None:
    """Writes a file that appears whole or not at all; a failure leaves nothing behind.

    Raises:
        UserError: the disk is full.
    """
    raw = content.encode() if isinstance(content, str) else content
    if is_remote(path):  # an object is never seen half written
        epath.Path(path).write_bytes(raw)
        return
    with whole_file(path) as aside:
        aside.write_bytes(raw)


def unfinished(path: pathlib.Path) -> pathlib.Path:
    """Returns a name beside ``path`` for what is to become it, or has been it.

    No two are alike: a worker of a killed run may live on for a while, and a cluster may give one
    job to two workers.
    """
    return path.with_name(f"{path.name}.{uuid.uuid4().hex}{_UNFINISHED}")


def remove_unfinished(directory: pathlib.Path) -> None:
    """Removes what runs that were killed have left in a local directory."""
    for path in directory.glob(f"*{_UNFINISHED}"):
        _remove(path)


@contextlib.contextmanager
def _aside(target: epath.Path) -> Iterator[pathlib.Path]:
    """Gives a name on this machine that is gone after the block: beside a local target."""
    with disk_errors(target), contextlib.ExitStack() as stack:
        if is_remote(target):
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            yield pathlib.Path(directory) / target.name
            return
        aside = unfinished(pathlib.Path(target))
        try:
            yield aside
        finally:
            _remove(aside)


def _upload(directory: pathlib.Path, target: epath.Path, *, last: str) -> None:
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    for path in sorted(files, key=lambda path: path == directory / last):
        epath.Path(path).copy(target / path.relative_to(directory).as_posix(), overwrite=True)


def _remove(path: pathlib.Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
