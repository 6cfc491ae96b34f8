"""JSON objects, one a line, of which some may be damaged: a log that must outlive its writers."""

import json
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from etils import epath

from bert_jax.files.read import read_bytes
from bert_jax.files.remote import each

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

    Its pieces, as `bert_jax.files.line_log` writes them, lie beside the file.

    Raises:
        UserError: there is no such log, or it cannot be read.
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
