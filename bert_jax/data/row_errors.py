"""Errors about rows of tables, and whether they stop the reading or skip the row."""

from collections.abc import Callable, Iterable
from typing import Final, Literal, TypeAlias, TypeVar

from bert_jax.errors import UserError

OnError: TypeAlias = Literal["stop", "skip"]  # action at a malformed row
SKIPPED_SHOWN: Final = 3  # number of skipped rows that a note lists

ItemT = TypeVar("ItemT")
MadeT = TypeVar("MadeT")


class RowError(UserError):
    """A row of a table is malformed. Later rows can still be read."""


class RowErrors:
    """Raises the error of a malformed row, or skips the row.

    ``RowErrors("skip").kept(["1", "x", "2"], number) -> [1, 2]``
    """

    def __init__(self, on_error: OnError = "stop", *, setting: str | None = None) -> None:
        """Starts without skipped rows.

        Args:
            on_error: action at a malformed row.
            setting: setting that skips malformed rows, such as ``--on-error=skip``. Errors
                mention it.
        """
        self._on_error, self.setting = on_error, setting
        self._first: list[str] = []  # errors of the first skipped rows
        self.count = 0  # number of skipped rows

    def refuse(self, error: RowError) -> None:
        """Counts the row of an error as skipped. With ``stop``, raises the error instead."""
        if self._on_error == "stop":
            if self.setting is None:
                raise error
            raise error.followed_by(f" ({self.setting} skips such rows)") from error
        self.count += 1
        if self.count <= SKIPPED_SHOWN:
            self._first.append(str(error))

    def kept(self, items: Iterable[ItemT], make: Callable[[ItemT], MadeT]) -> list[MadeT]:
        """Returns ``make(item)`` for each item. Refuses items for which `make` raises RowError."""
        made = []
        for item in items:
            try:
                made.append(make(item))
            except RowError as error:
                self.refuse(error)
        return made

    def note(self, table: object, *, kept: int) -> list[str]:
        """Returns a note on the skipped rows with the first errors; [] if no row was skipped."""
        if not self.count:
            return []
        first = "; ".join(error.removeprefix(f"{table}: ") for error in self._first)
        more = "; …" if self.count > SKIPPED_SHOWN else ""
        return [f"{table}: skipped {self.count:,} of {self.count + kept:,} rows: {first}{more}"]
