"""Logs of JSON lines, some perhaps damaged: appended to one local file, or pieces in a bucket.

An object in a bucket cannot be appended to. So a log there is `metrics/part-000001.jsonl` and those
after it, and a line is uploaded once, however long the log becomes.
"""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from etils import epath

from bert_jax.files.atomic import full_disk, write_whole
from bert_jax.files.read import read_bytes
from bert_jax.files.remote import each, is_remote

# Between two pieces. A crash of the process loses no line that a checkpoint needs: it flushes.
PIECE_SECONDS: Final = 60.0
PIECE_LINES: Final = 10_000

Entry: TypeAlias = dict[str, Any]
Check: TypeAlias = Callable[[Entry], bool]
"""Says whether a JSON object is an entry of the log, and not a foreign line."""

_PIECE: Final = "part-{:06d}.jsonl"


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

    Its pieces, as `bert_jax.files.line_log` writes them, lie beside the file. Raises UserError if
    there is no such log, or it cannot be read.
    """
    root = epath.Path(path)
    files = [root] if root.exists() else []
    files += pieces(root)
    contents = each(read_bytes, files or [root])
    return [line.entry for raw in contents for line in parse_lines(raw, check).good]


def piece(path: epath.Path, number: int) -> epath.Path:
    """Returns a log's piece: ``metrics.jsonl``, 7 -> ``metrics/part-000007.jsonl``."""
    return path.with_suffix("") / _PIECE.format(number)


def pieces(path: epath.Path) -> list[epath.Path]:
    """Returns the pieces of a log that there are, in their order."""
    directory = path.with_suffix("")
    if not directory.exists():
        return []
    return sorted(directory.glob("part-*.jsonl"), key=piece_number)


def piece_number(path: epath.Path) -> int:
    """Returns the number of a piece, 0 of the file that has none."""
    digits = path.stem.removeprefix("part-")
    return int(digits) if digits.isdigit() else 0


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
    path: epath.PathLike, *, check: Check, keep: Check, say: Callable[[str], None]
) -> LineLog:
    """Opens a log to go on with it, and drops what is no part of it any more.

    Damaged and foreign lines are moved to a file beside it, ``metrics.damaged``. The path, local or
    ``gs://``, ends in ``.jsonl``; `check` tells entries from foreign lines, `keep` which of them
    stay. `say` gets a line if damaged lines were found, or the disk is full. Raises UserError if it
    cannot be read or written.
    """
    root = epath.Path(path)
    files = [root] if root.exists() else []
    files += pieces(root)
    found = {
        file: parse_lines(raw, check)
        for file, raw in zip(files, each(read_bytes, files), strict=True)
    }
    _set_aside(root, found, say)
    if is_remote(root):
        # From the end: a process that is killed meanwhile leaves lines that the next one drops.
        for file, lines in reversed(found.items()):
            _rewrite(file, lines, keep)
        return PieceLog(root, first=1 + max(map(piece_number, files), default=0))
    whole = [line for lines in found.values() for line in lines.good if keep(line.entry)]
    write_whole(root, to_bytes(whole))
    for file in pieces(root):  # of a run that was copied from a bucket
        file.unlink()
    return FileLog(pathlib.Path(root), say=say)


class FileLog:
    """A local file. Every entry is with the operating system at once, and so outlives a kill.

    On a full disk entries wait in memory, and go to the file when there is room.
    """

    def __init__(self, path: pathlib.Path, *, say: Callable[[str], None]) -> None:
        """Goes on at the end of ``path``, which is there.

        `say` gets a line when entries begin to wait, and if they are lost.
        """
        self._path, self._say = path, say
        self._waiting = b""

    def append(self, entry: Entry) -> None:
        """Adds an entry; a reader finds it by the next `flush` at the latest."""
        waited = bool(self._waiting)
        self._waiting += _line(entry)
        if (reason := _refusal(self._write)) and not waited:
            self._say(f"{self._path}: {reason}; its lines wait in memory until there is room")

    def flush(self) -> None:
        """Makes sure that what was appended outlives this process and its machine.

        Raises OSError if the disk is full; a later call may succeed.
        """
        self._write()
        with self._path.open("rb") as file:
            os.fsync(file.fileno())

    def close(self) -> None:
        """Flushes, or says that it cannot. Idempotent."""
        if reason := _refusal(self.flush):
            lost = self._waiting.count(b"\n")
            self._say(f"{self._path}: {reason}; the last {lost} of its lines are not in it")

    def _write(self) -> None:
        """Writes what waits, or nothing of it."""
        if not self._waiting:
            return
        with self._path.open("ab", buffering=0) as file:
            end = file.tell()
            try:
                rest = memoryview(self._waiting)
                while rest:  # the disk may take a part; the next attempt says why
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(end)
                raise
        self._waiting = b""


class PieceLog:
    """Pieces in a bucket, each written once and whole."""

    def __init__(self, path: epath.Path, *, first: int, seconds: float = PIECE_SECONDS) -> None:
        """Writes nothing yet.

        While entries come, none waits longer than `seconds` for its piece; `first` is the next
        piece's number.
        """
        self._path, self._next, self._seconds = path, first, seconds
        self._waiting: list[bytes] = []
        self._since = 0.0

    def append(self, entry: Entry) -> None:
        """Adds an entry; a reader finds it by the next `flush` at the latest."""
        now = time.monotonic()
        if not self._waiting:
            self._since = now
        self._waiting.append(_line(entry))
        if now - self._since >= self._seconds or len(self._waiting) >= PIECE_LINES:
            self.flush()

    def flush(self) -> None:
        """Makes sure that what was appended outlives this process and its machine.

        Raises UserError if the bucket cannot be written, such as for a quota; a later call may
        succeed.
        """
        if self._waiting:
            write_whole(piece(self._path, self._next), b"".join(self._waiting))
            self._next += 1
            self._waiting = []

    def close(self) -> None:
        """Flushes. Idempotent."""
        self.flush()


LineLog: TypeAlias = FileLog | PieceLog


def _refusal(write: Callable[[], None]) -> str | None:
    """Writes; returns what the system says where the disk is full."""
    try:
        write()
    except OSError as error:
        if (reason := full_disk(error)) is None:
            raise
        return reason
    return None


def _line(entry: Entry) -> bytes:
    return json.dumps(entry).encode() + b"\n"


def _rewrite(file: epath.Path, lines: ParsedLines, keep: Check) -> None:
    kept: list[Line] = [line for line in lines.good if keep(line.entry)]
    if not kept:
        file.unlink()
    elif len(kept) < len(lines.good) or lines.damaged:
        write_whole(file, to_bytes(kept))


def _set_aside(
    root: epath.Path, found: dict[epath.Path, ParsedLines], say: Callable[[str], None]
) -> None:
    """Moves damaged lines out of the way, before the log is written without them."""
    damaged = [line for lines in found.values() for line in lines.damaged]
    if not damaged:
        return
    aside = root.with_suffix(".damaged")
    before = read_bytes(aside) if aside.exists() else b""
    write_whole(aside, before + b"".join(line + b"\n" for line in damaged))
    count = f"{len(damaged)} lines were" if len(damaged) > 1 else "1 line was"
    say(f"{root}: {count} damaged or not ours, moved to {aside}; all others are kept")
