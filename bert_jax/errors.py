"""Errors that one line explains to a user, and the parts of such lines."""

import difflib
from collections.abc import Iterable
from typing import Final

UNCAUGHT: Final = 70
"""The exit code after an unhandled exception: a fault of program or machine."""

_LONGEST = 2000  # characters of a message
_MOST_COMPARED = 200  # characters: the cost of comparing grows with their product


class UserError(Exception):
    """A mistake of the user's: the command line prints it as one line and exits with 2.

    The message names the file or key, what was found, what is allowed, and a similar right name:
    ``UserError('data.seq_length: found "5l2", allowed: an integer')``. A very long one is cut.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message if len(message) <= _LONGEST else f"{message[:_LONGEST]}…")


class NoCredentials(UserError):
    """No valid credentials for a cloud. They may have expired: the user may log in again."""


class RunStopped(Exception):
    """A run that stopped itself, such as on a loss that is not finite; exit code 1."""


class LoaderWorkerKilled(RunStopped):
    """The system has killed a worker process of the loader.

    Exit handlers of the loader's library may wait for that process forever: end with `os._exit`.
    """


class Diverged(RunStopped):
    """A run with bad numbers: not finite, or a spike. The same run would stop there again."""


class PeerLost(Exception):
    """Another process of the job is gone, or never started; exit code 4."""


def did_you_mean(found: str, allowed: Iterable[str]) -> str:
    """Returns ``'; did you mean "mesh"?'`` for the nearest allowed name, else ``''``."""
    if len(found) > _MOST_COMPARED:
        return ""
    near = difflib.get_close_matches(found, list(allowed), n=1, cutoff=0.6)
    return f'; did you mean "{near[0]}"?' if near else ""


def differing(found: str, wanted: str) -> tuple[str, str]:
    """Returns two hashes cut to the twelve characters that end at their first difference.

    ``differing("ab96" + "0" * 60, "ab96" + "0" * 59 + "1") -> ("…000000000000", "…000000000001")``
    """
    pairs = zip(found, wanted, strict=False)
    at = next((at for at, (one, other) in enumerate(pairs) if one != other), 0)
    start = max(0, at - 11)

    def cut(text: str) -> str:
        before, after = "…" if start else "", "…" if len(text) > start + 12 else ""
        return f"{before}{text[start : start + 12]}{after}"

    return cut(found), cut(wanted)


def installing(extra: str) -> str:
    """Returns the command that installs an extra: ``pip install '.[gcp]' in the checkout …``."""
    return f"pip install '.[{extra}]' in the checkout of bert_jax"


def not_installed(library: str, purpose: str, *, extra: str) -> str:
    """Returns ``"rensa: not installed, needed for examples; allowed: pip install '.[data]' …"``."""
    return f"{library}: not installed, needed for {purpose}; allowed: {installing(extra)}"


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun: ``"1 row"``, ``"1,200 rows"``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def first_line(error: BaseException) -> str:
    """Returns the first line of a library's error."""
    return (str(error).splitlines() or [type(error).__name__])[0]
