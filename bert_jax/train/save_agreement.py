"""A save is done on all processes of a job or on none: what fails on one is known to all."""

import contextlib
from typing import Final

import jax

from bert_jax.parallel.channel import current_channel
from bert_jax.train.agreement import first_failure

# All files are written; the checkpoint has its name.
_MEETINGS: Final = 2
_SECONDS: Final = 1200.0  # as Orbax waits for a process that writes


class SaveAgreement:
    """The barriers of a save, to which a process that has failed comes as well, and says so.

    At Orbax's own the others would wait twenty minutes for it, and it would not wait for them.
    """

    def __init__(self) -> None:
        """Waits for the first save."""
        self._save = 0  # every process has begun as many
        self._met = 0  # barriers of this one that were passed
        self._failure: str | None = None  # which all have heard of

    def begin(self) -> None:
        """Begins another save; each process must call it."""
        self._save, self._met, self._failure = self._save + 1, 0, None

    def __call__(self, *, key: str, timeout_ms: int) -> None:
        """Returns when all processes have come here, in the threads that save.

        Args:
            key: Orbax's name of the barrier.
            timeout_ms: milliseconds for the others to come.

        Raises:
            TimeoutError: they have not.
            RuntimeError: the save has failed on one of them, which the message names.
        """
        self._meet(None, timeout=timeout_ms / 1000)
        if self._failure is not None:
            raise RuntimeError(self._failure)

    def fail(self, reason: str) -> str:
        """Says in a few words that the save has failed here, and waits until the others give it up.

        Returns:
            The reason, in the words of all processes.
        """
        if jax.process_count() > 1 and self._failure is None and self._met < _MEETINGS:
            with contextlib.suppress(TimeoutError):
                self._meet(reason, timeout=_SECONDS)
        return self._failure or reason

    def _meet(self, reason: str | None, *, timeout: float) -> None:
        channel = current_channel()
        if channel is None:
            return
        self._met += 1
        about = f"save {self._save}.{self._met}"
        self._failure = first_failure(channel.exchange(reason, about=about, timeout=timeout))
