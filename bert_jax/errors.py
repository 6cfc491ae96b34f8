"""Errors that are shown to a user as one line, and helpers for their messages."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

UNCAUGHT: Final = 70
"""Exit code after an unhandled exception, which is a fault of the program or the machine."""

_LONGEST = 2000  # characters of a message
_MOST_COMPARED = 200  # characters; longer names take too long to compare


class KeyedError(Exception):
    """An error with a stable key. Tests and documents refer to the key, so the message may change.

        error = UserError(
            "mesh.heads",
            f"{found} does not divide {heads} attention heads. Use {one_of(allowed)}.",
            place="mesh.tensor",
        )
        str(error) -> "mesh.tensor: 5 does not divide 12 attention heads. Use 1, 2, 3, 4, 6 or 12."

    Attributes:
        key: kind of the error, ``area.kind``.
        message: text without the place. ``str(error)`` cuts it after 2,000 characters.
        place: a file, setting or row, or "". ``str(error)`` starts with it.
    """

    def __init__(self, key: str, message: str, /, *, place: object = "") -> None:
        self.key, self.message, self.place = key, message, str(place)
        super().__init__(key)

    @classmethod
    def wrong(cls, key: str, found: object, allowed: object, *, place: object = "") -> Self:
        """Returns the error for a wrong value: ``place: found 5, allowed: 1, 2``."""
        return cls(key, f"found {found}, allowed: {allowed}", place=place)

    @classmethod
    def unknown(cls, key: str, name: str, allowed: Iterable[str], *, place: object = "") -> Self:
        """Returns the error for a name that is not one of the allowed names, with a similar one."""
        names = list(allowed)
        return cls.wrong(
            key, f'"{name:.60}"', f"{commas(names)}{did_you_mean(name, names)}", place=place
        )

    def __str__(self) -> str:
        text = f"{self.place}: {self.message}" if self.place else self.message
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.key, self.message, self.place)

    def line(self) -> str:
        """Returns the message on one line, with the key in brackets at its end."""
        return f"{' '.join(str(self).split())} [{self.key}]"

    def located(self, place: object) -> Self:
        """Returns this error with a place before its own: ``model.bert_config: a.json``."""
        return self.with_place(f"{place}: {self.place}" if self.place else str(place))

    def with_place(self, place: str) -> Self:
        """Returns this error with another place."""
        return _rebuild(type(self), self.key, self.message, place)

    def followed_by(self, addition: str, /) -> Self:
        """Returns this error with a longer message."""
        return _rebuild(type(self), self.key, self.message + addition, self.place)


def _rebuild(kind: Any, key: str, message: str, place: str) -> Any:
    return kind(key, message, place=place)


def commas(names: Iterable[object]) -> str:
    """Returns ``"a, b, c"``, or "none" for no names. A text stays as it is."""
    return names if isinstance(names, str) else ", ".join(map(str, names)) or "none"


def one_of(names: Iterable[object]) -> str:
    """Returns ``"a, b or c"``."""
    return _ended(names, "or")


def all_of(names: Iterable[object]) -> str:
    """Returns ``"a, b and c"``."""
    return _ended(names, "and")


def _ended(names: Iterable[object], word: str) -> str:
    *others, last = map(str, names) if names else ("none",)
    return f"{', '.join(others)} {word} {last}" if others else last


class UserError(KeyedError):
    """A mistake of the user. The command line prints it as one line and exits with 2.

    The message names the wrong value, the allowed values and, if there is one, a similar name. Its
    `place` is the file or the setting.
    """


class OutOfMemory(UserError):
    """The memory of a device or of the host is full: the settings do not fit the machine.

    Exit with `os._exit`, because exit handlers may need memory, or wait for each other forever.
    """


class SettingError(KeyedError, ValueError):
    """A wrong setting, raised by a section's validator. `validate` turns it into a `UserError`.

    `place`, if given, is the setting's name within the section.
    """

    def at(self, place: str) -> UserError:
        """Returns this error as a UserError with a new place."""
        return UserError(self.key, self.message, place=place)


class NoCredentials(UserError):
    """No valid credentials for a cloud: none were found, or they have expired."""


class RunStopped(KeyedError):
    """A run stopped itself, for example on a loss that is not finite. Exit code 1."""


class LoaderWorkerKilled(RunStopped):
    """The system has killed a worker process of the loader.

    Exit with `os._exit`, because exit handlers of Grain may wait for the worker forever.
    """


class Diverged(RunStopped):
    """A loss or gradient norm was not finite or spiked. A restart would stop at the same step."""


class PeerLost(KeyedError):
    """Another process of the job has died or never started. Exit code 4."""


def did_you_mean(found: str, allowed: Iterable[str]) -> str:
    """Returns ``'; did you mean "mesh"?'``, or ``''`` if no allowed name is similar."""
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


def not_installed(
    library: str, purpose: str, *, extra: str, kind: type[UserError] = UserError
) -> UserError:
    """Returns the error for a missing library: what needs it, and the command that installs it."""
    return kind(
        "install.missing",
        f"not installed, but needed for {purpose}. Run {installing(extra)}.",
        place=library,
    )


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun: ``"1 row"``, ``"1,200 rows"``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def first_line(error: BaseException) -> str:
    """Returns the first line of a library's error."""
    return (str(error).splitlines() or [type(error).__name__])[0]


_KINDS: Final = {kind.__name__: kind for kind in (UserError, RunStopped, PeerLost)}


def error_to_json(error: KeyedError) -> dict[str, Any]:
    """Returns an error as plain JSON."""
    kind = next(name for name, kind in _KINDS.items() if isinstance(error, kind))
    return {"kind": kind, "key": error.key, "message": error.message, "place": error.place}


def error_from_json(found: Mapping[str, Any], kind: type[KeyedError] | None = None) -> KeyedError:
    """Returns the error that `error_to_json` encoded. Without `kind`, its class is a base class."""
    kind = kind or _KINDS[found["kind"]]
    return kind(found["key"], found["message"], place=found["place"])
