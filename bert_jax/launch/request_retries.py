"""Time limits and retries of requests to a service."""

import dataclasses
import logging
import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from bert_jax.errors import NoCredentials
from bert_jax.files.storage_retries import (
    FIRST_PAUSE_SECONDS,
    GIVE_UP_SECONDS,
    LONGEST_PAUSE_SECONDS,
    log_waiting,
    reason_of,
)
from bert_jax.launch.launcher import Unavailable

Answer = TypeVar("Answer")

_LINE_INTERVAL_SECONDS: Final = 60.0
_log: Final = logging.getLogger("bert_jax.launch")


@dataclasses.dataclass(frozen=True)
class RequestLimits:
    """Time limits of requests in seconds, with their clocks."""

    timeout: float = 30.0  # limit for one try
    give_up: float = GIVE_UP_SECONDS  # limit from the first try to the end of the last pause
    poll: float = 10.0  # interval between requests for a deletion
    delete: float = 1800.0  # limit for a deletion
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic  # clock for pauses and limits, in seconds
    now: Callable[[], float] = time.time  # clock in seconds since 1970
    draw: Callable[[], float] = random.random  # uniform random number from 0 to 1


def persistently(
    send: Callable[[], Answer],
    *,
    what: str,
    judge: Callable[[Exception], float | Exception],
    pace: RequestLimits,
) -> Answer:
    """Sends a request, retries it with growing pauses, and returns the answer.

    `what` names the request in messages: ``queued resource bert-1``. `judge` takes an error and
    returns the minimum pause before a retry in seconds, or the exception to raise.

    Raises:
        Unavailable: no answer within `RequestLimits.give_up`, or credentials have expired since.
        Exception: the exception that `judge` returned.
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
                # Do not raise NoCredentials: an earlier try may have succeeded.
                expired = f"no answer, and then expired credentials: {verdict}"
                raise Unavailable("cloud.login_expired", expired, place=what) from error
            if isinstance(verdict, Exception):
                raise verdict from error
            waited = pace.clock() - began
            pause = max(verdict, longest * pace.draw())
            if waited + pause > pace.give_up:
                silent = f"no answer for {waited:.0f} s ({reason_of(error)})"
                raise Unavailable("cloud.no_answer", silent, place=what) from error
            log_waiting(what, waited, error)
        tries += 1
        longest = min(2 * longest, LONGEST_PAUSE_SECONDS)
        pace.sleep(pause)


def until_gone(is_gone: Callable[[], bool], *, what: str, pace: RequestLimits) -> None:
    """Calls `is_gone`, which requests a deletion, until it returns True.

    Raises Unavailable after `RequestLimits.delete`.
    """
    began = printed_at = pace.clock()
    while (now := pace.clock()) < began + pace.delete:
        if is_gone():
            return
        if now >= printed_at + _LINE_INTERVAL_SECONDS:
            _log.warning("%s: being deleted for %.0f min", what, (now - began) / 60)
            printed_at = now
        pace.sleep(pace.poll)
    waited = f"not deleted in {pace.delete / 60:.0f} min, and may cost money"
    raise Unavailable("cloud.not_deleted", f"{waited}. Run `bert-jax jobs`.", place=what)
