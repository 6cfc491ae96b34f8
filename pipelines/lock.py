"""A lock that one process at a time holds."""

from __future__ import annotations

import fcntl
import os
import pathlib


class FileLock:
    """A file that is locked, on this machine or over NFS: the system unlocks it when we end."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._file: int | None = None

    def take(self) -> bool:
        """Returns whether the lock is ours now; another process may hold it."""
        while self._file is None:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                return False
            # Between the two calls its last holder may have removed the file.
            if self.path.exists() and os.path.samestat(os.fstat(file), os.stat(self.path)):
                self._file = file
            else:
                os.close(file)
        return True

    def give_back(self) -> None:
        """Removes the file, and with it the lock, if we hold it."""
        if self._file is not None:
            self.path.unlink()
            os.close(self._file)
            self._file = None
