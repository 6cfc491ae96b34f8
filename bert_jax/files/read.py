"""Reads text, lines and JSON from files within limits, and computes their SHA-256.

Files are not trusted: only regular files are read, and file sizes, the depth of JSON and the length
of numbers are limited. Errors name the file.
"""

import collections
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.remote import is_remote, within

MAX_FILE_BYTES: Final = 1 << 30
"""Default limit for reading a whole file."""
MAX_JSON_BYTES: Final = 32 << 20
"""Limit for JSON files: three times the size of the largest tokenizer.json."""
MAX_DEPTH: Final = 100  # levels of nested objects and lists
MAX_DIGITS: Final = 40  # digits of an integer; Hugging Face writes 10**30 for "no limit"
MAX_LINE: Final = 64 << 20  # characters in a line of a table


def require_file(path: epath.PathLike) -> None:
    """Raises UserError unless the path is an accessible regular file.

    Reading a device or a pipe could block forever.
    """
    if is_remote(path):  # a bucket contains only files
        return
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise no_such_file(path) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise _unreadable(path, error) from error
    if not stat.S_ISREG(mode):
        found = "a directory" if stat.S_ISDIR(mode) else "a device, a pipe or a socket"
        raise UserError.wrong("file.kind", found, "a file", place=path)


def read_bytes(path: epath.Path, *, limit: int = MAX_FILE_BYTES) -> bytes:
    """Returns the content of a file, local or ``gs://``.

    Raises UserError if the file is missing, larger than `limit` bytes or unreadable.
    """
    require_file(path)
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except FileNotFoundError:
        raise no_such_file(path) from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    if len(content) > limit:
        raise UserError("file.too_large", f"larger than the limit of {limit:,} bytes", place=path)
    return content  # pyright: ignore[reportReturnType] (typed as text by epath)


def read_text(path: epath.Path, *, limit: int = MAX_FILE_BYTES) -> str:
    """Returns the content of a UTF-8 file without a byte order mark. Line ends are unchanged.

    Raises UserError like `read_bytes`, and if the file is not UTF-8.
    """
    content = read_bytes(path, limit=limit)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise not_utf8(f"{path}: offset {error.start}", error) from None


def read_lines(path: Path, *, newline: str = "\n", limit: int = MAX_LINE) -> Iterator[str]:
    """Yields the lines of a local text file with their line ends, without a byte order mark.

    `newline` is passed to `open`. Raises UserError if the file is missing or not UTF-8, or a line
    is longer than `limit` characters.
    """
    require_file(path)
    number = 0
    try:
        with path.open(encoding="utf-8-sig", newline=newline) as file:
            while line := file.readline(limit + 1):
                number += 1
                if len(line) > limit:
                    raise UserError(
                        "file.line_too_long",
                        f"longer than the limit of {limit:,} characters",
                        place=f"{path}: line {number}",
                    )
                yield line
    except UnicodeDecodeError as error:
        raise _no_utf8(path, error, limit) from None
    except OSError as error:
        raise _unreadable(path, error) from error


def read_json_object(path: epath.Path, *, limit: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Returns the JSON object in a file.

    Raises UserError like `read_text` and `parse_json_object`.
    """
    text = read_text(path, limit=limit)
    try:
        return parse_json_object(text)
    except UserError as error:
        raise error.located(path) from None


# Names of JSON values by their type in Python; other types are numbers.
_JSON_KINDS: Final = {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}


def parse_json_object(text: str, *, allowed: str = "a JSON object") -> dict[str, Any]:
    """Parses a JSON object. Raises UserError like `parse_json`, and for any other JSON value."""
    content = parse_json(text, allowed=allowed)
    if not isinstance(content, dict):
        raise UserError.wrong("json.kind", _JSON_KINDS.get(type(content), "a number"), allowed)
    return content


def parse_json(text: str, *, allowed: str = "JSON") -> Any:
    """Returns the value of a JSON text. `allowed` describes the expected value in the message.

    Raises UserError if the text is not JSON, repeats a key, has an unpaired surrogate, or exceeds
    the limits of depth and digits.
    """
    try:
        content = _DECODER.decode(text)
        # An unpaired surrogate can only come from an escape sequence, since UTF-8 has none.
        if "\\ud" in text or "\\uD" in text:
            json.dumps(content, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        where = f" in line {error.lineno}" if "\n" in text else ""
        raise UserError.wrong("json.invalid", f"no JSON ({error.msg}{where})", allowed) from None
    except UnicodeEncodeError as error:
        raise UserError(
            "json.surrogate",
            f"found \\u{ord(error.object[error.start]):04x}, half of a surrogate pair",
        ) from None
    except RecursionError:
        raise _too_deep() from None
    level = [content] if isinstance(content, dict | list) else []
    for _ in range(MAX_DEPTH):
        values = (node.values() if isinstance(node, dict) else node for node in level)
        level = [each for held in values for each in held if isinstance(each, dict | list)]
    if level:
        raise _too_deep()
    return content


def _too_deep() -> UserError:
    return UserError("json.depth", f"JSON nested deeper than the limit of {MAX_DEPTH}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _),) = collections.Counter(name for name, _ in pairs).most_common(1)
        raise UserError.wrong("json.key_twice", f"the key {shown(twice)} twice", "once")
    return found


def is_whole(text: str) -> bool:
    """Returns whether a text consists of 1 to `MAX_DIGITS` ASCII digits."""
    return text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise UserError.wrong(
            "json.digits", f"a number of {len(digits):,} digits", f"at most {MAX_DIGITS}"
        )
    return int(digits)


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer)


def shown(value: Any, *, most: int = 60) -> str:
    """Returns a value as ASCII JSON for a message, cut after `most` characters."""
    plain = value is None or isinstance(value, str | int | float | bool)
    text = json.dumps(value) if plain else ascii(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def no_such_file(path: epath.PathLike, *, hint: str = "") -> UserError:
    """Returns the error for a missing file, with a hint, for example from `did_you_mean`."""
    return UserError("file.missing", f"no such file{within(path)}{hint}", place=path)


def not_utf8(place: str, error: UnicodeDecodeError) -> UserError:
    """Returns the error for bytes that are not UTF-8. `place` names the file and the line."""
    return _not_utf8(place, error.object[error.start])


def _not_utf8(place: str, byte: int) -> UserError:
    hint = ", as in UTF-16" if byte >= 254 else ""
    return UserError.wrong("file.not_utf8", f"byte 0x{byte:02x}{hint}", "UTF-8", place=place)


def _unreadable(path: epath.PathLike, error: Exception) -> UserError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return UserError("file.unreadable", f"cannot be read ({reason})", place=path)


def _no_utf8(path: Path, error: UnicodeDecodeError, limit: int) -> UserError:
    """Returns the error with its line number. Reads the file again to find the line."""
    number, found = 1, error.object[error.start]
    with path.open("rb") as file:
        while content := file.readline(limit):
            try:
                content.decode("utf-8")
            except UnicodeDecodeError as exact:
                found = content[exact.start]
                break
            number += content.endswith(b"\n")
    return _not_utf8(f"{path}: line {number}", found)


def sha256_of(path: epath.PathLike) -> str:
    """Returns the SHA-256 of a file in hexadecimal. Raises UserError like `require_file`."""
    require_file(path)
    with epath.Path(path).open("rb") as file:
        return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()


def sha256_of_files(files: Mapping[str, Path]) -> str:
    """Returns the SHA-256 of what `sha256sum` prints for the files, sorted by name."""
    sums = hashlib.sha256()
    for name, path in sorted(files.items()):
        sums.update(f"{sha256_of(path)}  {name}\n".encode())
    return sums.hexdigest()
