"""A full disk, said in one line."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
from collections.abc import Iterator
from typing import Final

from bert_jax.errors import UserError

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
    aside = path.with_name(path.name + ".tmp")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
