"""Logs of JSON lines, some perhaps damaged: one file, on a disk or in a bucket.

An object in a bucket cannot be appended to. So its lines are appended to a local file of this
process, which is uploaded whole with each checkpoint.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from etils import epath

from bert_jax.files.atomic import Attempts, refusal_of, write_errors, write_whole
from bert_jax.files.read import read_bytes
from bert_jax.files.remote import is_remote
from bert_jax.files.scratch import scratch_directory

Entry: TypeAlias = dict[str, Any]
Check: TypeAlias = Callable[[Entry], bool]
"""Says whether a JSON object is an entry of the log, and not a foreign line."""


class Line(NamedTuple):
    """A whole line of a log."""

    raw: bytes  # without its line end
    entry: Entry


class ParsedLines(NamedTuple):
    """The lines of one file, in their order."""

    good: list[Line]
    damaged: list[bytes]  # lines that are no entries; without the half line of a killed writer


def parse_lines(raw: bytes, check: Check) -> ParsedLines:
    """Separates the entries of a log from damaged and foreign lines.

    A killed writer leaves a last line without its line end: it counts if it is whole, and is
    dropped if it is not.
    """
    found = [(line, _entry(line, check)) for line in raw.split(b"\n")]
    good = [Line(line, entry) for line, entry in found if entry is not None]
    damaged = [line for line, entry in found[:-1] if entry is None and line.strip()]
    return ParsedLines(good, damaged)


def read_log(path: epath.PathLike, check: Check) -> list[Entry]:
    """Returns the entries of a log without its damaged lines; UserError if it cannot be read."""
    return [line.entry for line in parse_lines(read_bytes(epath.Path(path)), check).good]


def _entry(line: bytes, check: Check) -> Entry | None:
    try:
        found = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):  # not UTF-8, no JSON, or nested without end
        return None
    return found if isinstance(found, dict) and check(found) else None


def open_log(
    path: epath.PathLike, *, check: Check, keep: Check, say: Callable[[str], None]
) -> LineLog:
    """Opens a log, local or ``gs://``, to append to it, and drops what is no part of it any more.

    Damaged and foreign lines are moved to ``metrics.damaged`` in the same directory. `check` tells
    entries from foreign lines, `keep` which of them stay. `say` gets a line if damaged lines were
    found, or later ones are refused. Raises UserError if the log cannot be read or written.
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
    """A log that grows. Lines that a full disk or a bucket refuses wait for the next attempt."""

    def __init__(self, path: epath.Path, *, content: bytes, say: Callable[[str], None]) -> None:
        """Appends to a file that is there and has some content; see `open_log`."""
        self._path, self._say = path, say
        self._remote = is_remote(path)
        self._file = pathlib.Path(path)
        if self._remote:
            self._file = scratch_directory() / path.name
            self._file.write_bytes(content)
        self._whole = len(content)  # bytes of the file, without half a line of a failed attempt
        self._waiting = b""
        self._missing = 0  # lines that are not in the log yet
        self._attempts = Attempts(path, say=say)

    def append(self, entry: Entry) -> None:
        """Adds an entry; a reader finds it by the next `flush` at the latest."""
        self.append_raw(json.dumps(entry).encode() + b"\n")

    def append_raw(self, raw: bytes) -> None:
        """Adds bytes: a line with its end, or a record of another format."""
        self._waiting += raw
        self._missing += 1
        self._attempts.succeeds(self._write, otherwise="its lines wait until it can be written")

    def flush(self) -> None:
        """Makes sure that what was appended outlives this process and its machine.

        Raises OSError if the disk refuses it, such as a full one, UserError or RunStopped if the
        bucket does; a later call may succeed.
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
        """Flushes, or says that it cannot. Idempotent."""
        if (reason := refusal_of(self.flush)) is not None:
            self._say(
                f"{self._path}: {reason}; the last {self._missing} of its lines are not in it"
            )

    def _write(self) -> None:
        """Appends all waiting lines to the file, or leaves the file as it was."""
        if not self._waiting:
            return
        with self._file.open("ab", buffering=0) as file:
            file.truncate(self._whole)
            rest = memoryview(self._waiting)
            try:
                while rest:  # the disk may take a part; the next attempt says why
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(self._whole)  # no reader sees half a line
                raise
        self._whole += len(self._waiting)
        self._waiting = b""
        self._missing = self._missing if self._remote else 0


def _set_aside(root: epath.Path, damaged: list[bytes], say: Callable[[str], None]) -> None:
    """Moves damaged lines out of the way, before the log is written without them."""
    aside = root.with_suffix(".damaged")
    before = read_bytes(aside) if aside.exists() else b""
    write_whole(aside, before + b"".join(line + b"\n" for line in damaged))
    count = f"{len(damaged)} lines were" if len(damaged) > 1 else "1 line was"
    say(f"{root}: {count} damaged or not ours, moved to {aside}; all others are kept")
