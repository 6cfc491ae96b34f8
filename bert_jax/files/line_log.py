"""Logs of JSON lines on a disk or in a bucket. Damaged lines are tolerated.

A bucket has no append operation. So this process appends to a local file, and uploads the whole
file with each checkpoint.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from etils import epath

from bert_jax.errors import counted
from bert_jax.files.atomic import WriteAttempts, refusal_of, write_errors, write_whole
from bert_jax.files.read import read_bytes
from bert_jax.files.remote import is_remote
from bert_jax.files.scratch import scratch_directory

Entry: TypeAlias = dict[str, Any]
Check: TypeAlias = Callable[[Entry], bool]
"""Returns whether a JSON object is an entry of the log."""


class Line(NamedTuple):
    """A complete line of a log."""

    raw: bytes  # without its newline
    entry: Entry


class ParsedLines(NamedTuple):
    """The lines of a log, in order."""

    good: list[Line]
    damaged: list[bytes]  # lines that are not entries, except a partial last line


def parse_lines(raw: bytes, check: Check) -> ParsedLines:
    """Separates the entries of a log from damaged and foreign lines.

    A killed writer may leave a last line without a newline. If that line is not an entry, it is
    dropped.
    """
    found = [(line, _entry(line, check)) for line in raw.split(b"\n")]
    good = [Line(line, entry) for line, entry in found if entry is not None]
    damaged = [line for line, entry in found[:-1] if entry is None and line.strip()]
    return ParsedLines(good, damaged)


def read_log(path: epath.PathLike, check: Check) -> list[Entry]:
    """Returns the entries of a log, without damaged lines. Raises UserError if it is unreadable."""
    return [line.entry for line in parse_lines(read_bytes(epath.Path(path)), check).good]


def _entry(line: bytes, check: Check) -> Entry | None:
    try:
        found = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):  # not UTF-8, not JSON, or nested too deeply
        return None
    return found if isinstance(found, dict) and check(found) else None


def open_log(
    path: epath.PathLike, *, check: Check, keep: Check, say: Callable[[str], None]
) -> LineLog:
    """Opens a log, local or ``gs://``, for appending, and removes outdated entries.

    Damaged and foreign lines are moved to a file with the suffix ``.damaged``.

    Args:
        path: path of the log. It need not exist.
        check: returns whether a JSON object is an entry.
        keep: returns whether an entry is kept.
        say: prints a line if lines are damaged or later writes fail.

    Raises:
        UserError: The log cannot be read or written.
    """
    root = epath.Path(path)
    found = read_bytes(root) if root.exists() else None
    lines = parse_lines(found or b"", check)
    if lines.damaged:
        _set_aside(root, lines.damaged, say)
    kept = b"".join(line.raw + b"\n" for line in lines.good if keep(line.entry))
    if kept != found:
        write_whole(root, kept)
    return LineLog(root, content=kept, say=say)


class LineLog:
    """A log open for appending. If a write fails, the next write retries its lines."""

    def __init__(self, path: epath.Path, *, content: bytes, say: Callable[[str], None]) -> None:
        """`content` is the current content of the log; see `open_log`."""
        self._path, self._say = path, say
        self._remote = is_remote(path)
        self._file = pathlib.Path(path)
        if self._remote:
            self._file = scratch_directory() / path.name
            self._file.write_bytes(content)
        self._whole = len(content)  # bytes of complete lines in the file
        self._waiting = b""
        self._missing = 0  # number of lines not yet in the log
        self._attempts = WriteAttempts(path, say=say)

    def append(self, entry: Entry) -> None:
        """Appends an entry. Readers see it after the next `flush` at the latest."""
        self.append_raw(json.dumps(entry).encode() + b"\n")

    def append_raw(self, raw: bytes) -> None:
        """Appends a line with its newline, or a record of another format."""
        self._waiting += raw
        self._missing += 1
        self._attempts.succeeds(self._write, otherwise="its lines are kept in memory")

    def flush(self) -> None:
        """Writes all entries durably: to the disk with fsync, or to the bucket.

        Raises OSError if the disk fails or is full, and UserError or RunStopped if the bucket
        fails. A later call may succeed.
        """
        self._write()
        if not self._remote:
            with self._file.open("rb") as file:
                os.fsync(file.fileno())
        elif self._missing:
            with write_errors(self._path):
                epath.Path(self._file).copy(self._path, overwrite=True)
        self._missing = 0
        self._attempts.worked()

    def close(self) -> None:
        """Flushes the log. If that fails, prints how many lines were not saved. Idempotent."""
        if (reason := refusal_of(self.flush)) is not None:
            self._say(f"{self._path}: {reason}; {counted(self._missing, 'line')} not saved")

    def _write(self) -> None:
        """Appends all waiting lines to the file. If that fails, the file is unchanged."""
        if not self._waiting:
            return
        with self._file.open("ab", buffering=0) as file:
            file.truncate(self._whole)
            rest = memoryview(self._waiting)
            try:
                while rest:  # a nearly full disk may write only a part
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(self._whole)  # remove a partial line
                raise
        self._whole += len(self._waiting)
        self._waiting = b""
        self._missing = self._missing if self._remote else 0


def _set_aside(root: epath.Path, damaged: list[bytes], say: Callable[[str], None]) -> None:
    """Appends damaged lines to the file with the suffix ``.damaged``."""
    aside = root.with_suffix(".damaged")
    before = read_bytes(aside) if aside.exists() else b""
    write_whole(aside, before + b"".join(line + b"\n" for line in damaged))
    lines = counted(len(damaged), "damaged or foreign line")
    say(f"{root}: moved {lines} to {aside}")
