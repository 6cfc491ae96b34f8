"""How long a request that fails is tried again, and when an outage of the buckets is given up."""

import concurrent.futures
import logging
import threading
import time
from typing import Final, TypeVar

from bert_jax.errors import NoCredentials, RunStopped, UserError

Result = TypeVar("Result")

GIVE_UP_SECONDS: Final = 600.0
"""After so long without an answer, an outage is given up."""

STOPPING_SECONDS: Final = 10.0
"""The same once a signal has asked the process to stop: machines are gone half a minute later."""

FIRST_PAUSE_SECONDS: Final = 1.0
"""The longest first pause. It doubles with each try. Each pause is drawn uniformly between 0
and that length, so that refused hosts do not retry together."""

LONGEST_PAUSE_SECONDS: Final = 32.0

_LOGIN: Final = (
    "Run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS."
)

_QUIET_SECONDS: Final = 10.0
_BETWEEN_LINES_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.2

_log: Final = logging.getLogger("bert_jax.files")
_log.setLevel(logging.WARNING)  # also where a library has quieted all others
_said_at = [-_BETWEEN_LINES_SECONDS]
_saying = threading.Lock()


def say_waiting(what: str, waited: float, error: BaseException) -> None:
    """Says that a request is tried again: not in its first ten seconds, a line a minute in all.

    The request for `what`, such as ``gs://bucket/name``, has failed for `waited` seconds.
    """
    with _saying:
        now = time.monotonic()
        if waited < _QUIET_SECONDS or now - _said_at[0] < _BETWEEN_LINES_SECONDS:
            return
        _said_at[0] = now
    line = "%s: no answer for %.0f s (%s); retrying for up to %.0f min"
    _log.warning(line, what, waited, reason_of(error), GIVE_UP_SECONDS / 60)


class Outage:
    """The time since buckets stopped answering. One clock, `OUTAGE`, serves the whole process.

    The first request that fails starts the clock, and an answer to any request resets it. So ten
    requests that fail one after the other wait ten minutes in all, not ten minutes each.

    Attributes:
        stopping: a signal has asked the process to stop, which shortens the limit.
    """

    def __init__(self) -> None:
        self.stopping = False
        self._began: float | None = None
        self._where, self._reason = "", ""  # of the last failure

    def failed(self, what: str, error: BaseException, *, waited: float) -> None:
        """Counts a failure of a request for ``gs://bucket/name``, `waited` seconds after its start.

        Raises RunStopped if the request is given up: others may have ended the outage meanwhile.
        """
        say_waiting(what, waited, error)
        self._where, self._reason = what, reason_of(error)
        if self._began is None:
            self._began = time.monotonic()
        if (given_up := self.given_up(waited)) is not None:
            raise given_up from error

    def answered(self) -> None:
        """Ends the outage: a bucket has answered."""
        self._began = None

    def given_up(self, waited: float = 0.0) -> RunStopped | None:
        """Returns why requests, the oldest `waited` seconds old, are not tried again, or None."""
        began = self._began
        seconds = max(waited, 0.0 if began is None else time.monotonic() - began)
        if seconds <= (STOPPING_SECONDS if self.stopping else GIVE_UP_SECONDS):
            return None
        return RunStopped(
            "bucket.no_answer",
            "no answer for {seconds:.0f} s ({reason}). When it answers again, run the same command "
            "to resume.",
            place=self._where,
            seconds=seconds,
            reason=self._reason,
        )

    def result(self, future: concurrent.futures.Future[Result]) -> Result:
        """Returns the result of work in a bucket. Raises RunStopped if the outage is given up."""
        while not concurrent.futures.wait([future], timeout=_POLL_SECONDS).done:
            if (given_up := self.given_up()) is not None:
                raise given_up
        return future.result()


OUTAGE: Final = Outage()


def no_credentials(place: object) -> NoCredentials:
    """Returns the error for a machine without credentials for Google Cloud."""
    return NoCredentials(
        "gcp.no_credentials", "no credentials for Google Cloud. {login}", place=place, login=_LOGIN
    )


def credentials_refused(place: object, reason: str) -> NoCredentials:
    """Returns the error for credentials that Google Cloud refuses."""
    return NoCredentials(
        "gcp.credentials",
        "no valid credentials ({reason}). {login}",
        place=place,
        reason=reason,
        login=_LOGIN,
    )


def no_such_bucket(bucket: str) -> UserError:
    """Returns the error for a missing ``gs://bucket``."""
    return UserError(
        "bucket.missing",
        "no such bucket. Create it with gcloud storage buckets create {bucket}.",
        place=bucket,
        bucket=bucket,
    )


def reason_of(error: BaseException) -> str:
    """Returns why a request failed in a few words: ``try again, 503``."""
    message = getattr(error, "message", None) or error
    if isinstance(message, bytes):
        message = message.decode("utf-8", errors="replace")
    first = (str(message).strip().splitlines() or [""])[0][:200]
    return first or type(error).__name__
