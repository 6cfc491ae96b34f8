"""Malformed rows of a table: an error, or skipped and counted."""

from collections.abc import Callable, Iterable
from typing import Final, Literal, TypeAlias, TypeVar

from bert_jax.errors import UserError

OnError: TypeAlias = Literal["stop", "skip"]
SHOWN: Final = 3  # skipped rows in a note

ItemT = TypeVar("ItemT")
MadeT = TypeVar("MadeT")


class RowError(UserError):
    """One row of a table is malformed; the rows after it can be read."""


class RowErrors:
    """Raises the error of a malformed row, or skips the row.

    ``RowErrors("skip").kept(["1", "x", "2"], number) -> [1, 2]``
    """

    def __init__(self, on_error: OnError = "stop", *, setting: str | None = None) -> None:
        """Starts without skipped rows.

        `setting` is what a user sets to skip malformed rows; errors name it.
        """
        self._on_error, self.setting = on_error, setting
        self._first: list[str] = []  # errors of the first skipped rows
        self.count = 0  # skipped rows

    def refuse(self, error: RowError) -> None:
        """Skips the row of an error; RowError: rows are not skipped."""
        if self._on_error == "stop":
            if self.setting is None:
                raise error
            raise RowError(f"{error}; {self.setting} would skip the row") from error
        self.count += 1
        if self.count <= SHOWN:
            self._first.append(str(error))

    def kept(self, items: Iterable[ItemT], make: Callable[[ItemT], MadeT]) -> list[MadeT]:
        """Returns what `make` returns for each item, without the items it raises RowError for."""
        made = []
        for item in items:
            try:
                made.append(make(item))
            except RowError as error:
                self.refuse(error)
        return made

    def note(self, table: object, *, kept: int) -> list[str]:
        """Returns a line with the number of skipped rows and the first errors; [] without any."""
        if not self.count:
            return []
        first = "; ".join(error.removeprefix(f"{table}: ") for error in self._first)
        more = "; …" if self.count > SHOWN else ""
        return [f"{table}: skipped {self.count:,} of {self.count + kept:,} rows: {first}{more}"]
