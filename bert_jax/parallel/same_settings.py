"""Compares settings and data of all processes before they compute together.

With different programs, processes would wait for each other forever or abort in C++. Different data
would change the training unnoticed.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from bert_jax.errors import UserError
from bert_jax.parallel.channel import Member, current_channel

# Settings that may differ between processes: addresses, and directories on local disks.
OF_ONE_HOST: Final = (
    "mesh.distributed",
    "mesh.compilation_cache.directory",
    "loader.cache.directory",
)
_LONGEST: Final = 200  # characters of a value; a longer value is replaced by its hash
_NOT_SET: Final = "null"

Flat = dict[str, str]  # dotted key → value as JSON


class Difference(NamedTuple):
    """The first key whose value differs from the value in process 0."""

    key: str
    found: str  # value in the differing process
    expected: str  # value in process 0


def require_same(values: Mapping[str, Any]) -> None:
    """Compares settings over all processes. Every process must call it in the same order.

    `values` are nested plain JSON. If a process differs from process 0, all processes raise a
    UserError that names the process, and the first differing key with both values.
    """
    if (channel := current_channel()) is None:
        return
    mine = flatten(values)
    # Only process 0 sends its settings. Hundreds of processes would send too many bytes.
    expected = channel.exchange(mine if channel.index == 0 else None)[0]
    differences = channel.exchange(first_difference(mine, expected))
    if (error := difference_error(dict(enumerate(differences)), channel.members)) is not None:
        raise error


def all_equal(value: Any) -> bool:
    """Returns whether a value, plain JSON, is equal in all processes. Every process must call it.

    Also returns True if the job has one process.
    """
    channel = current_channel()
    return channel is None or all(found == value for found in channel.exchange(value))


def flatten(values: Mapping[str, Any]) -> Flat:
    """Returns settings by dotted key, except those in `OF_ONE_HOST`."""
    return {
        key: _short(json.dumps(leaf))
        for key, leaf in _leaves(values, "")
        if not any(f"{key}.".startswith(f"{other}.") for other in OF_ONE_HOST)
    }


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yields settings by dotted key. A list of plain values is one setting."""
    if isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        yield key, value
        return
    for name, item in value.items():
        yield from _leaves(item, f"{key}.{name}" if key else str(name))


def _short(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"SHA-256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def first_difference(mine: Flat, expected: Flat) -> Difference | None:
    """Returns the first setting that differs, or None. A missing key equals null."""
    for key in {**expected, **mine}:  # in the order of process 0
        found, wanted = mine.get(key, _NOT_SET), expected.get(key, _NOT_SET)
        if found != wanted:
            return Difference(key, found, wanted)
    return None


def difference_error(
    differences: Mapping[int, Sequence[str] | None], members: Mapping[int, Member]
) -> UserError | None:
    """Returns the error that names the first differing process, or None if all are equal."""
    differing = {index: found for index, found in sorted(differences.items()) if found}
    if not differing:
        return None
    first, (key, found, expected) = next(iter(differing.items()))
    return UserError(
        "processes.settings_differ",
        f"found {found} in {members[first]} and {expected} in {members[0]}",
        place=key,
    )
