"""What a host prints, on its way to the job's directory."""

import collections
import threading
from collections.abc import Callable
from typing import Final

from etils import epath

from bert_jax.files.atomic import write_whole

PART_BYTES: Final = 1 << 20
"""An object cannot be appended to: what is uploaded again with each heartbeat is one part."""

_MOST_PARTS: Final = 64  # kept while the bucket does not answer; then the oldest go


class HostLog:
    """Takes lines in one thread and uploads them in another."""

    def __init__(self, path_of: Callable[[int], epath.Path]) -> None:
        """Goes on after the parts that are there, from before a reboot; they count from 0."""
        self._path_of = path_of
        self._lock = threading.Lock()
        self._first = 0  # the number of the first part that is kept
        while path_of(self._first).exists():
            self._first += 1
        self._parts = collections.deque([bytearray()])
        self._dirty = False

    def write(self, line: bytes) -> None:
        """Adds a line."""
        with self._lock:
            if len(self._parts[-1]) >= PART_BYTES:
                self._parts.append(bytearray())
            if len(self._parts) > _MOST_PARTS:
                self._parts.popleft()
                self._first += 1
            self._parts[-1] += line
            self._dirty = True

    def upload(self) -> None:
        """Writes what is new. After an error the next call writes it.

        Raises:
            UserError, RunStopped, OSError: it cannot be written.
        """
        with self._lock:
            if not self._dirty:
                return
            parts = [(self._first + at, bytes(part)) for at, part in enumerate(self._parts)]
            self._dirty = False
        try:
            for number, content in parts:
                write_whole(self._path_of(number), content)
        except BaseException:
            self._dirty = True
            raise
        with self._lock:  # whole parts are done with
            while self._first < parts[-1][0]:
                self._parts.popleft()
                self._first += 1
