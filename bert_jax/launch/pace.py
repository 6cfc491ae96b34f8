"""How long a request to a service may take, and when it is sent again: one rule for all of them."""

import dataclasses
import logging
import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from bert_jax.errors import NoCredentials, not_installed
from bert_jax.files.patience import (
    FIRST_PAUSE_SECONDS,
    GIVE_UP_SECONDS,
    LONGEST_PAUSE_SECONDS,
    Patience,
    reason_of,
)
from bert_jax.launch.launcher import Unavailable

Answer = TypeVar("Answer")

_BETWEEN_LINES_SECONDS: Final = 60.0
_log: Final = logging.getLogger("bert_jax.launch")

NOT_INSTALLED: Final = not_installed(
    "clients of Google Cloud and Kubernetes", "submit", extra="launch,gcp"
)


@dataclasses.dataclass(frozen=True)
class Pace:
    """Times in seconds, and the clock that they are of: tests bring their own."""

    timeout: float = 30.0  # of one try
    give_up: float = GIVE_UP_SECONDS  # from the first try to the end of the last pause
    poll: float = 10.0  # between two looks at something that is being deleted
    delete: float = 1800.0  # how long a deletion may take
    sleep: Callable[[float], None] = time.sleep  # waits
    clock: Callable[[], float] = time.monotonic  # of pauses; never goes back
    now: Callable[[], float] = time.time  # seconds since 1970
    draw: Callable[[], float] = random.random  # from 0 to 1, evenly


@dataclasses.dataclass(frozen=True)
class Again:
    """What failed may succeed later: after so many seconds at the earliest, as the service says."""

    after: float = 0.0


def persistently(
    send: Callable[[], Answer],
    *,
    what: str,
    judge: Callable[[Exception], Again | Exception],
    pace: Pace,
) -> Answer:
    """Returns what a request answers, sent again with growing pauses while it fails in passing.

    `what` is asked for, for messages: ``queued resource bert-1``. `judge` says of an error whether
    to go on, or what to raise instead. Raises Unavailable after `Pace.give_up` without an answer,
    or when credentials have run out meanwhile; else what `judge` has returned.
    """
    patience, began, longest = Patience(what), pace.clock(), FIRST_PAUSE_SECONDS
    while True:
        try:
            return send()
        except Exception as error:
            verdict = judge(error)
            if verdict is error:
                raise
            if isinstance(verdict, NoCredentials) and patience.tries:
                # A try before it may have been done, and its answer lost.
                raise Unavailable(f"{what}: no answer, and then {verdict}") from error
            if isinstance(verdict, Exception):
                raise verdict from error
            waited = pace.clock() - began
            pause = max(verdict.after, longest * pace.draw())
            if waited + pause > pace.give_up:
                raise Unavailable(
                    f"{what}: no answer for {waited:.0f} s ({reason_of(error)})"
                ) from error
            patience.failed(error)
        longest = min(2 * longest, LONGEST_PAUSE_SECONDS)
        pace.sleep(pause)


def until_gone(is_gone: Callable[[], bool], *, what: str, pace: Pace) -> None:
    """Asks for a deletion until there is nothing to delete: what is asked for twice is one.

    `is_gone` asks, and says whether there was nothing any more. Raises Unavailable if it is still
    there after `Pace.delete`.
    """
    began = said_at = pace.clock()
    while (now := pace.clock()) < began + pace.delete:
        if is_gone():
            return
        if now >= said_at + _BETWEEN_LINES_SECONDS:
            _log.warning("%s: being deleted for %.0f min", what, (now - began) / 60)
            said_at = now
        pace.sleep(pace.poll)
    raise Unavailable(
        f"{what}: not deleted after {pace.delete / 60:.0f} min; it may bill, look: bert-jax jobs"
    )
