"""Small files: read with errors that name them, written whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etils import epath

from bert_jax.errors import UserError


def read_bytes(path: epath.Path) -> bytes:
    """Returns the content of ``path``.

    Raises:
        UserError: there is no such file, or it cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error


def read_text(path: epath.Path) -> str:
    """Returns the content of ``path`` as UTF-8, line ends as they stand.

    Raises:
        UserError: there is no such file, or its bytes are not UTF-8.
    """
    content = read_bytes(path)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        found = content[error.start]
        raise UserError(
            f"{path}: found byte 0x{found:02x} at offset {error.start}, allowed: UTF-8"
        ) from None


def read_json_object(path: epath.Path) -> dict[str, Any]:
    """Returns the JSON object in ``path``.

    Raises:
        UserError: no such file, not UTF-8, not JSON, or not an object.
    """
    try:
        content = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}: found no JSON ({error.msg} in line {error.lineno}), allowed: a JSON object"
        ) from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: found a JSON {type(content).__name__}, allowed: a JSON object")
    return content


def write_whole(path: epath.Path, content: bytes) -> None:
    """Writes ``content`` aside and renames it to ``path``: a reader finds all of it or none.

    Args:
        path: where to write; its directory is made.
        content: what to write.

    Raises:
        UserError: the disk is full, or the place cannot be written to.
    """
    aside = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            aside.write_bytes(content)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from error


@contextlib.contextmanager
def new_directory(path: Path, *, force: bool, option: str = "--force") -> Iterator[Path]:
    """Gives a directory to fill, which appears as `path` once the block has ended well.

    Args:
        path: a local directory that is not there yet, or is empty.
        force: replace one that is there; until the new one is whole the old one stays.
        option: what to name in the error.

    Raises:
        UserError: something is there and `force` is False, or the place cannot be written to.
    """
    if path.exists() and not force and not (path.is_dir() and not any(path.iterdir())):
        raise UserError(f"{path}: is already there; allowed: a new directory, or {option}")
    aside = path.parent / f".{path.name}.{os.getpid()}.tmp"
    old = path.parent / f".{path.name}.{os.getpid()}.old"
    try:
        aside.mkdir(parents=True)
        try:
            yield aside
            if path.exists():
                path.replace(old)
            aside.replace(path)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
            _remove(old)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from error


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
