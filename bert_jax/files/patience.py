"""How long to go on asking a bucket that does not answer: the one rule for all that talk to one."""

import logging
import threading
import time
from typing import Final

from bert_jax.errors import not_installed

GIVE_UP_SECONDS: Final = 600.0
"""A request that fails for so long is given up. tensorstore's own limit for arrays is near it."""

FIRST_PAUSE_SECONDS: Final = 1.0
"""The longest first pause. It doubles with each try, and each is drawn evenly from nothing to that
length, so that hosts which were refused together do not come back together."""

LONGEST_PAUSE_SECONDS: Final = 32.0

NOT_INSTALLED: Final = not_installed("Google Cloud's clients", "gs://", extra="gcp")
LOGIN: Final = "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS"

_QUIET_SECONDS: Final = 10.0
_BETWEEN_LINES_SECONDS: Final = 60.0

_log: Final = logging.getLogger("bert_jax.files")
_log.setLevel(logging.WARNING)  # also where a library has quieted all others


class Patience:
    """What is said of one request while it is tried again: nothing for ten seconds, then a line.

    Many requests fail at once when a bucket does, so all together they say a line a minute.
    """

    _said_at = -_BETWEEN_LINES_SECONDS
    _saying = threading.Lock()

    def __init__(self, what: str) -> None:
        """Starts counting; ``what`` is asked for, such as ``gs://bucket/name``."""
        self.what = what
        self.tries = 0
        self._began = time.monotonic()

    @property
    def waited(self) -> float:
        """Seconds since the first try."""
        return time.monotonic() - self._began

    def failed(self, error: Exception) -> None:
        """Counts a try that failed, and says so if it has been a while."""
        self.tries += 1
        if self.waited < _QUIET_SECONDS:
            return
        with Patience._saying:
            now = time.monotonic()
            if now - Patience._said_at < _BETWEEN_LINES_SECONDS:
                return
            Patience._said_at = now
        _log.warning(
            "%s: no answer for %.0f s (%s); trying again for up to %.0f min",
            self.what,
            self.waited,
            reason_of(error),
            GIVE_UP_SECONDS / 60,
        )


def reason_of(error: BaseException) -> str:
    """Returns why a request failed in a few words: ``try again, 503``."""
    message = getattr(error, "message", None) or error
    if isinstance(message, bytes):
        message = message.decode("utf-8", errors="replace")
    first = (str(message).strip().splitlines() or [""])[0][:200]
    return first or type(error).__name__
