"""What one process finds out and all act upon; saves that are done on all processes or on none."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax

from bert_jax.errors import RunStopped, UserError
from bert_jax.files.atomic import refusal_of
from bert_jax.parallel.channel import current_channel


def from_first_process(find_out: Callable[[], Any]) -> Any:
    """Returns what the first process finds out, plain JSON, on all processes; each must call it.

    Raises UserError, RunStopped: what it raised there, on all processes.
    """
    if (channel := current_channel()) is None or jax.process_count() == 1:
        return find_out()
    answer: dict[str, Any] = {}
    if channel.index == 0:
        try:
            answer = {"found": find_out()}
        except (UserError, RunStopped) as error:
            answer = {"error": str(error), "mistake": isinstance(error, UserError)}
    answer = channel.exchange(answer)[0]
    if "error" in answer:
        raise (UserError if answer["mistake"] else RunStopped)(answer["error"])
    return answer["found"]


def from_all_processes(value: Any) -> list[Any]:
    """Returns what each process says, plain JSON, on all of them; each must call it."""
    channel = current_channel()
    if channel is None or jax.process_count() == 1:
        return [value]
    return channel.exchange(value)


def failure_of(write: Callable[[], None]) -> str | None:
    """Writes something on all processes; returns why it failed on one of them, or None.

    A full disk, a bucket that cannot be written. Each process must call it.
    """
    return first_failure(from_all_processes(refusal_of(write)))


def first_failure(reasons: Sequence[str | None]) -> str | None:
    """Returns the first of all processes' reasons that is not None, and whose it is."""
    failed = [index for index, reason in enumerate(reasons) if reason is not None]
    if not failed:
        return None
    reason = str(reasons[failed[0]])
    if (channel := current_channel()) is None or len(reasons) == 1:
        return reason
    more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    return f"{channel.members[failed[0]]}: {reason}{more}"


# All files are written; the checkpoint has its name.
_MEETINGS: Final = 2
_SECONDS: Final = 1200.0  # as Orbax waits for a process that writes


class SaveAgreement:
    """The barriers of a save, to which a process that has failed comes as well, and says so.

    At Orbax's own the others would wait twenty minutes for it, and it would not wait for them.
    """

    def __init__(self) -> None:
        self._save = 0  # every process has begun as many
        self._met = 0  # barriers of this one that were passed
        self._failure: str | None = None  # which all have heard of

    def begin(self) -> None:
        """Begins another save; each process must call it."""
        self._save, self._met, self._failure = self._save + 1, 0, None

    def __call__(self, *, key: str, timeout_ms: int) -> None:
        """Returns when all processes have come here, in the threads that save.

        `key` is Orbax's name of the barrier; the others have `timeout_ms` milliseconds to come.
        Raises TimeoutError: they have not; RuntimeError: the save has failed on one of them, which
        the message names.
        """
        self._meet(None, timeout=timeout_ms / 1000)
        if self._failure is not None:
            raise RuntimeError(self._failure)

    def fail(self, reason: str) -> str:
        """Says that the save has failed here, and waits until the others give it up.

        Returns the reason in the words of all processes.
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
