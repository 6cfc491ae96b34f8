"""Files and directories that appear whole, and a full disk said in one line."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import shutil
import uuid
from collections.abc import Iterator
from typing import Final

from bert_jax.errors import UserError

_UNFINISHED: Final = ".tmp"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def disk_errors(path: pathlib.Path) -> Iterator[None]:
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


def write_aside(path: pathlib.Path, text: str) -> None:
    """Writes a file that appears whole or not at all; a failure leaves nothing behind."""
    aside = unfinished(path)
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_directory(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """Gives a directory to fill, which appears as ``target`` once the block has ended well.

    If it is there by then, another worker has done the same job, and this one's work is dropped.

    Raises:
        UserError: the disk is full.
    """
    aside = unfinished(target)
    with disk_errors(target):
        try:
            aside.mkdir()
            yield aside
            try:
                aside.rename(target)
            except OSError:
                if not target.exists():
                    raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def unfinished(path: pathlib.Path) -> pathlib.Path:
    """Returns a name beside ``path`` for what is to become it.

    No two are alike: a worker of a killed run may live on for a while, and a cluster may give one
    job to two workers.
    """
    return path.with_name(f"{path.name}.{uuid.uuid4().hex}{_UNFINISHED}")


def remove_unfinished(directory: pathlib.Path) -> None:
    """Removes what runs that were killed have left in a directory."""
    for path in directory.glob(f"*{_UNFINISHED}"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
