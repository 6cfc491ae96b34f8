"""Files read whole, with errors that name them."""

from __future__ import annotations

import json
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
    """Returns the content of ``path``, decoded as UTF-8; line ends are not translated.

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
    text = read_text(path)
    try:
        return parse_json_object(text)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def parse_json_object(text: str, *, allowed: str = "a JSON object") -> dict[str, Any]:
    """Returns the JSON object in a text.

    Raises:
        UserError: not JSON, or not an object; the message does not name the file.
    """
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        where = f" in line {error.lineno}" if "\n" in text else ""
        raise UserError(f"found no JSON ({error.msg}{where}), allowed: {allowed}") from None
    except RecursionError as error:
        raise UserError(f"found no JSON ({error}), allowed: {allowed}") from None
    if not isinstance(content, dict):
        raise UserError(f"found a JSON {type(content).__name__}, allowed: {allowed}")
    return content
