"""Retry limits for buckets, and errors of Google Cloud."""

import concurrent.futures
import logging
import threading
import time
from typing import Final, TypeVar

from bert_jax.errors import NoCredentials, RunStopped, UserError

Result = TypeVar("Result")

GIVE_UP_SECONDS: Final = 600.0
"""Requests fail after this time without an answer."""

STOPPING_SECONDS: Final = 10.0
"""Replaces `GIVE_UP_SECONDS` after a signal to stop: a preempted machine has half a minute."""

FIRST_PAUSE_SECONDS: Final = 1.0
"""Upper limit of the first pause. The limit doubles with each retry. Each pause is drawn uniformly
between 0 and the limit, so that hosts do not retry at the same time."""

LONGEST_PAUSE_SECONDS: Final = 32.0

_LOGIN: Final = (
    "Run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS."
)

_QUIET_SECONDS: Final = 10.0
_BETWEEN_LINES_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.2

_log: Final = logging.getLogger("bert_jax.files")
_log.setLevel(logging.WARNING)  # independent of the root level
_logged_at = [-_BETWEEN_LINES_SECONDS]
_log_lock = threading.Lock()


def log_waiting(what: str, waited: float, error: BaseException) -> None:
    """Logs that a request is retried, after ten seconds and at most once per minute.

    The request for `what`, such as ``gs://bucket/name``, has failed for `waited` seconds.
    """
    with _log_lock:
        now = time.monotonic()
        if waited < _QUIET_SECONDS or now - _logged_at[0] < _BETWEEN_LINES_SECONDS:
            return
        _logged_at[0] = now
    line = "%s: no answer for %.0f s (%s); retrying for up to %.0f min"
    _log.warning(line, what, waited, reason_of(error), GIVE_UP_SECONDS / 60)


class Outage:
    """Measures the time without an answer. All requests of the process share `OUTAGE`.

    The first failed request starts the clock, and an answer to any request resets it. So ten
    requests that fail one after another wait ten minutes together, not ten minutes each.

    Attributes:
        stopping: whether a signal has told the process to stop, which shortens the limit.
    """

    def __init__(self) -> None:
        self.stopping = False
        self._began: float | None = None
        self._where, self._reason = "", ""  # last failed request, and its error

    def failed(self, what: str, error: BaseException, *, waited: float) -> None:
        """Records a failed request for `what`, which began `waited` seconds ago.

        Raises RunStopped if the request has waited longer than the limit, even if other requests
        have succeeded meanwhile.
        """
        log_waiting(what, waited, error)
        self._where, self._reason = what, reason_of(error)
        if self._began is None:
            self._began = time.monotonic()
        if (given_up := self.given_up(waited)) is not None:
            raise given_up from error

    def answered(self) -> None:
        """Ends the outage, because a bucket has answered."""
        self._began = None

    def given_up(self, waited: float = 0.0) -> RunStopped | None:
        """Returns the error that ends retries, or None if the limit is not exceeded.

        `waited`: seconds since the request began.
        """
        began = self._began
        seconds = max(waited, 0.0 if began is None else time.monotonic() - began)
        if seconds <= (STOPPING_SECONDS if self.stopping else GIVE_UP_SECONDS):
            return None
        return RunStopped(
            "bucket.no_answer",
            f"no answer for {seconds:.0f} s ({self._reason}). Run the same command later.",
            place=self._where,
        )

    def result(self, future: concurrent.futures.Future[Result]) -> Result:
        """Waits for a future that uses a bucket. Raises RunStopped if the outage is too long."""
        while not concurrent.futures.wait([future], timeout=_POLL_SECONDS).done:
            if (given_up := self.given_up()) is not None:
                raise given_up
        return future.result()


OUTAGE: Final = Outage()


def no_credentials(place: object) -> NoCredentials:
    """Returns the error for a machine without credentials for Google Cloud."""
    return NoCredentials(
        "gcp.no_credentials", f"no credentials for Google Cloud. {_LOGIN}", place=place
    )


def credentials_refused(place: object, reason: str) -> NoCredentials:
    """Returns the error for credentials that Google Cloud refuses."""
    return NoCredentials(
        "gcp.credentials", f"no valid credentials ({reason}). {_LOGIN}", place=place
    )


def no_such_bucket(bucket: str) -> UserError:
    """Returns the error for a missing ``gs://bucket``."""
    return UserError(
        "bucket.missing",
        f"no such bucket. Create it with `gcloud storage buckets create {bucket}`.",
        place=bucket,
    )


def reason_of(error: BaseException) -> str:
    """Returns a short reason of a failed request: ``try again, 503``."""
    message = getattr(error, "message", None) or error
    if isinstance(message, bytes):
        message = message.decode("utf-8", errors="replace")
    first = (str(message).strip().splitlines() or [""])[0][:200]
    return first or type(error).__name__
