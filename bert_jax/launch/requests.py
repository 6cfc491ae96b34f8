"""How long a request to a service may take, and when it is sent again."""

import dataclasses
import logging
import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from bert_jax.errors import NoCredentials
from bert_jax.files.patience import (
    FIRST_PAUSE_SECONDS,
    GIVE_UP_SECONDS,
    LONGEST_PAUSE_SECONDS,
    reason_of,
    say_waiting,
)
from bert_jax.launch.launcher import Unavailable

Answer = TypeVar("Answer")

_BETWEEN_LINES_SECONDS: Final = 60.0
_log: Final = logging.getLogger("bert_jax.launch")


@dataclasses.dataclass(frozen=True)
class Pace:
    """Times of requests in seconds, and their clock."""

    timeout: float = 30.0  # of one try
    give_up: float = GIVE_UP_SECONDS  # from the first try to the end of the last pause
    poll: float = 10.0  # between two requests for a deletion
    delete: float = 1800.0  # how long a deletion may take
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic  # for pauses
    now: Callable[[], float] = time.time  # seconds since 1970
    draw: Callable[[], float] = random.random  # from 0 to 1, evenly


def persistently(
    send: Callable[[], Answer],
    *,
    what: str,
    judge: Callable[[Exception], float | Exception],
    pace: Pace,
) -> Answer:
    """Returns the answer to a request, which is sent again with growing pauses if it fails.

    `what` names the request in messages: ``queued resource bert-1``. `judge` takes an error and
    returns the least seconds to wait before the next try, or the exception to raise instead.

    Raises:
        Unavailable: no answer within `Pace.give_up`, or credentials ran out after the first try.
        Exception: what `judge` returned.
    """
    tries, began, longest = 0, pace.clock(), FIRST_PAUSE_SECONDS
    while True:
        try:
            return send()
        except Exception as error:
            verdict = judge(error)
            if verdict is error:
                raise
            if isinstance(verdict, NoCredentials) and tries:
                # An earlier try may have succeeded with its answer lost.
                raise Unavailable(f"{what}: no answer, and then {verdict}") from error
            if isinstance(verdict, Exception):
                raise verdict from error
            waited = pace.clock() - began
            pause = max(verdict, longest * pace.draw())
            if waited + pause > pace.give_up:
                raise Unavailable(
                    f"{what}: no answer for {waited:.0f} s ({reason_of(error)})"
                ) from error
            say_waiting(what, waited, error)
        tries += 1
        longest = min(2 * longest, LONGEST_PAUSE_SECONDS)
        pace.sleep(pause)


def until_gone(is_gone: Callable[[], bool], *, what: str, pace: Pace) -> None:
    """Calls `is_gone`, which asks for a deletion, until it returns True.

    Raises Unavailable after `Pace.delete`.
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
