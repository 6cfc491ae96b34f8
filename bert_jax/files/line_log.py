"""Logs of JSON lines, some perhaps damaged: appended to one local file, or pieces in a bucket.

An object in a bucket cannot be appended to. So a log there is `metrics/part-000001.jsonl` and those
after it, and a line is uploaded once, however long the log becomes.
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

from bert_jax.files.atomic import refusal_of, write_whole
from bert_jax.files.attempts import Attempts, Sending
from bert_jax.files.read import is_whole, read_bytes
from bert_jax.files.remote import each, is_remote

# Between two pieces. A crash of the process loses no line that a checkpoint needs: it flushes.
PIECE_SECONDS: Final = 60.0
PIECE_LINES: Final = 10_000

Entry: TypeAlias = dict[str, Any]
Check: TypeAlias = Callable[[Entry], bool]
"""Says whether a JSON object is an entry of the log, and not a foreign line."""

_PIECE: Final = "part-{:06d}.jsonl"
_WAITING: Final = "its lines wait in memory until it can be written"


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
    return int(digits) if is_whole(digits) else 0


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
    """Opens a log to go on with it, and drops what is no part of it any more.

    Damaged and foreign lines are moved to a file beside it, ``metrics.damaged``. The path, local or
    ``gs://``, ends in ``.jsonl``; `check` tells entries from foreign lines, `keep` which of them
    stay. `say` gets a line if damaged lines were found, or later ones are refused; pieces go to a
    bucket within `sending`. Raises UserError if it cannot be read or written.
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
        first = 1 + max(map(piece_number, files), default=0)
        return PieceLog(root, first=first, say=say, sending=sending)
    whole = [line for lines in found.values() for line in lines.good if keep(line.entry)]
    write_whole(root, to_bytes(whole))
    for file in pieces(root):  # of a run that was copied from a bucket
        file.unlink()
    return FileLog(pathlib.Path(root), say=say)


class FileLog:
    """A local file. Every entry is with the operating system at once, and so outlives a kill.

    What a disk refuses, such as a full one, waits in memory and goes to the file when it can.
    """

    def __init__(self, path: pathlib.Path, *, say: Callable[[str], None]) -> None:
        """Goes on at the end of ``path``, which is there.

        `say` gets a line when entries begin to wait, and if they are lost.
        """
        self._path, self._say = path, say
        self._attempts = Attempts(path, say=say)
        self._waiting = b""
        self._torn: int | None = None  # where the file is cut before more is written

    def append(self, entry: Entry) -> None:
        """Adds an entry; a reader finds it by the next `flush` at the latest."""
        self._waiting += _line(entry)
        self._attempts.succeeds(self._write, otherwise=_WAITING)

    def flush(self) -> None:
        """Makes sure that what was appended outlives this process and its machine.

        Raises OSError if the disk refuses it, such as a full one; a later call may succeed.
        """
        self._write()
        with self._path.open("rb") as file:
            os.fsync(file.fileno())

    def close(self) -> None:
        """Flushes, or says that it cannot. Idempotent."""
        if (reason := refusal_of(self.flush)) is not None:
            self._say(_lost(self._path, reason, self._waiting.count(b"\n")))

    def _write(self) -> None:
        """Writes what waits, or nothing of it."""
        if not self._waiting:
            return
        with self._path.open("ab", buffering=0) as file:
            if self._torn is not None:
                file.truncate(self._torn)
            self._torn = file.seek(0, os.SEEK_END)
            try:
                rest = memoryview(self._waiting)
                while rest:  # the disk may take a part; the next attempt says why
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(self._torn)  # or before the next attempt
                raise
            self._torn = None
        self._waiting = b""
        self._attempts.worked()


class PieceLog:
    """Pieces in a bucket, each written once and whole.

    What the bucket refuses waits in memory, and goes there with the next piece.
    """

    def __init__(
        self,
        path: epath.Path,
        *,
        first: int,
        say: Callable[[str], None],
        seconds: float = PIECE_SECONDS,
        sending: Sending = contextlib.nullcontext,
    ) -> None:
        """Writes nothing yet.

        While entries come, none waits longer than `seconds` for its piece, or for the next attempt
        at it; `first` is the next piece's number. `say` gets a line when pieces begin to be
        refused, and if lines are lost; they are written within `sending`.
        """
        self._path, self._next, self._seconds = path, first, seconds
        self._say, self._sending = say, sending
        self._attempts = Attempts(path, say=say)
        self._waiting: list[bytes] = []
        self._most = PIECE_LINES
        self._since = 0.0

    def append(self, entry: Entry) -> None:
        """Adds an entry; a reader finds it by the next `flush` at the latest."""
        now = time.monotonic()
        if not self._waiting:
            self._since = now
        self._waiting.append(_line(entry))
        if now - self._since >= self._seconds or len(self._waiting) >= self._most:
            self._attempts.succeeds(self.flush, otherwise=_WAITING)

    def flush(self) -> None:
        """Makes sure that what was appended outlives this process and its machine.

        Raises UserError if the bucket cannot be written, such as for a quota, RunStopped if it does
        not answer; a later call may succeed.
        """
        if not self._waiting:
            return
        try:
            with self._sending():
                write_whole(piece(self._path, self._next), b"".join(self._waiting))
        except BaseException:
            self._since, self._most = time.monotonic(), len(self._waiting) + PIECE_LINES
            raise
        self._next += 1
        self._waiting, self._most = [], PIECE_LINES
        self._attempts.worked()

    def close(self) -> None:
        """Flushes, or says that it cannot. Idempotent."""
        if (reason := refusal_of(self.flush)) is not None:
            self._say(_lost(self._path, reason, len(self._waiting)))


LineLog: TypeAlias = FileLog | PieceLog


def _lost(path: epath.PathLike, reason: str, lines: int) -> str:
    return f"{path}: {reason}; the last {lines} of its lines are not in it"


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
