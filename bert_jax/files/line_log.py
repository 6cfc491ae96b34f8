"""Logs of JSON lines, some perhaps damaged: one file, on a disk or in a bucket.

An object in a bucket cannot be appended to. So its lines are appended to a file in a directory of
this process, which is uploaded whole once a minute and with each checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from etils import epath

from bert_jax.files.atomic import refusal_of, write_errors, write_whole
from bert_jax.files.attempts import Attempts, Sending
from bert_jax.files.read import read_bytes
from bert_jax.files.remote import is_remote
from bert_jax.files.scratch import scratch_directory

# Between two uploads; longer if they are slow, so that they take 1% of the time.
UPLOAD_SECONDS: Final = 60.0
_UPLOAD_SHARE: Final = 0.01

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
    damaged: list[bytes]  # neither an entry of the log nor the half line that a kill leaves


def parse_lines(raw: bytes, check: Check) -> ParsedLines:
    """Tells the entries of a log from what is damaged or foreign.

    A last line without its line end is what a killed writer leaves: it counts if it is whole, and
    is dropped without a word if it is not.
    """
    good: list[Line] = []
    damaged: list[bytes] = []
    *lines, tail = raw.split(b"\n")
    for line in lines:
        entry = _entry(line, check)
        if entry is not None:
            good.append(Line(line, entry))
        elif line.strip():
            damaged.append(line)
    if (entry := _entry(tail, check)) is not None:
        good.append(Line(tail, entry))
    return ParsedLines(good, damaged)


def read_log(path: epath.PathLike, check: Check) -> list[Entry]:
    """Returns the entries of a log, in their order; damaged lines are passed over.

    Raises UserError if there is no such log, or it cannot be read.
    """
    return [line.entry for line in parse_lines(read_bytes(epath.Path(path)), check).good]


def to_bytes(lines: Iterable[Line]) -> bytes:
    """Returns lines as the content of a file."""
    return b"".join(line.raw + b"\n" for line in lines)


def _entry(line: bytes, check: Check) -> Entry | None:
    try:
        found = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):  # not UTF-8, no JSON, or nested without end
        return None
    return found if isinstance(found, dict) and check(found) else None


def open_log(
    path: epath.PathLike,
    *,
    check: Check,
    keep: Check,
    say: Callable[[str], None],
    sending: Sending = contextlib.nullcontext,
) -> LineLog:
    """Opens a log to append to it, and drops what is no part of it any more.

    Damaged and foreign lines are moved to a file beside it, ``metrics.damaged``. The path, local or
    ``gs://``, ends in ``.jsonl``; `check` tells entries from foreign lines, `keep` which of them
    stay. `say` gets a line if damaged lines were found, or later ones are refused; uploads are made
    within `sending`. Raises UserError if the log cannot be read or written.
    """
    root = epath.Path(path)
    found = read_bytes(root) if root.exists() else None
    lines = parse_lines(found or b"", check)
    if lines.damaged:
        _set_aside(root, lines.damaged, say)
    kept = to_bytes(line for line in lines.good if keep(line.entry))
    if kept != found:
        write_whole(root, kept)
    return LineLog(root, content=kept, say=say, sending=sending)


class LineLog:
    """A log that grows. On a disk every entry is with the operating system at once.

    If a full disk or a bucket refuses lines, they wait for the next attempt.
    """

    def __init__(
        self, path: epath.Path, *, content: bytes, say: Callable[[str], None], sending: Sending
    ) -> None:
        """Appends to a file that is there and has some content; see `open_log`."""
        self._path, self._say, self._sending = path, say, sending
        self._remote = is_remote(path)
        self._file = pathlib.Path(path)
        if self._remote:
            self._file = scratch_directory() / path.name
            self._file.write_bytes(content)
        self._whole = len(content)  # bytes of the file, without half a line of a failed attempt
        self._waiting = b""
        self._missing = 0  # lines that are not in the log yet
        self._due = time.monotonic() + UPLOAD_SECONDS
        self._attempts = Attempts(path, say=say)

    def append(self, entry: Entry) -> None:
        """Adds an entry; a reader finds it by the next `flush` at the latest."""
        self._waiting += json.dumps(entry).encode() + b"\n"
        self._missing += 1
        if not self._remote or time.monotonic() >= self._due:
            write = self.flush if self._remote else self._write
            self._attempts.succeeds(write, otherwise="its lines wait until it can be written")

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
            self._upload()
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

    def _upload(self) -> None:
        began = time.monotonic()
        try:
            with self._sending(), write_errors(self._path):
                epath.Path(self._file).copy(self._path, overwrite=True)
        finally:
            now = time.monotonic()
            self._due = now + max(UPLOAD_SECONDS, (now - began) / _UPLOAD_SHARE)


def _set_aside(root: epath.Path, damaged: list[bytes], say: Callable[[str], None]) -> None:
    """Moves damaged lines out of the way, before the log is written without them."""
    aside = root.with_suffix(".damaged")
    before = read_bytes(aside) if aside.exists() else b""
    write_whole(aside, before + b"".join(line + b"\n" for line in damaged))
    count = f"{len(damaged)} lines were" if len(damaged) > 1 else "1 line was"
    say(f"{root}: {count} damaged or not ours, moved to {aside}; all others are kept")
