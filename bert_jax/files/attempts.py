"""Writing that may be refused for a while, which is said once."""

import contextlib
from collections.abc import Callable
from typing import TypeAlias

from bert_jax.files.atomic import refusal_of

Sending: TypeAlias = Callable[[], contextlib.AbstractContextManager[None]]
"""Gives a block in which a bucket is written to, such as one whose time is counted apart."""


class Attempts:
    """Attempts to write to one place."""

    def __init__(self, place: object, *, say: Callable[[str], None]) -> None:
        """`say` gets a line when the place begins to refuse, and no other until it has taken it."""
        self._place, self._say = place, say
        self._refused = False

    def succeeds(self, write: Callable[[], object], *, otherwise: str) -> bool:
        """Writes, and returns whether the place has taken it.

        Otherwise a line says why not, and what follows from that: `otherwise`.
        """
        reason = refusal_of(write)
        if reason is not None and not self._refused:
            self._say(f"{self._place}: {reason}; {otherwise}")
        self._refused = reason is not None
        return not self._refused

    def worked(self) -> None:
        """Says that the place has taken something outside of `succeeds`."""
        self._refused = False
