"""Bad input: ends a run, or is counted and listed."""

from typing import Final, Literal

from bert_jax.errors import UserError

MOST_LISTED: Final = 100


class Problems:
    """What is wrong with some input, in the order of discovery."""

    def __init__(self, on_error: Literal["fail", "skip"]) -> None:
        self._on_error = on_error
        self.count = 0
        """All of them."""
        self.listed: list[str] = []
        """The first ``MOST_LISTED``, a line each."""

    @property
    def lists_more(self) -> bool:
        """Whether the next one will be listed."""
        return len(self.listed) < MOST_LISTED

    def add(self, error: UserError) -> None:
        """Notes that something was left out.

        Raises:
            UserError: ``error`` itself, where nothing may be left out.
        """
        if self._on_error == "fail":
            raise error
        self.count += 1
        if self.lists_more:
            self.listed.append(str(error))
