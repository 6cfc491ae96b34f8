"""Temporary directories of this process, and the user's directory of caches.

Exit handlers do not run if a process is killed or ends at once. So each process locks its temporary
directories, and the next one to make a directory deletes those without a lock.
"""

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

_LOCK: Final = ".lock"
_PREFIX: Final = "bert_jax_scratch_"
_held: list[int] = []  # descriptors, closed by the system at the process's end


def scratch_directory() -> Path:
    """Returns a new directory under the system's directory of temporary files.

    Raises OSError if it cannot be made.
    """
    root = Path(tempfile.gettempdir())
    for left in root.glob(f"{_PREFIX}*"):
        _delete_if_left(left)
    # It gets its name once it is locked: before that, another process would find it free.
    made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))
    lock = os.open(made / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    _held.append(lock)
    made = made.rename(made.with_name(made.name.removeprefix(".")))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def _delete_if_left(directory: Path) -> None:
    with contextlib.suppress(OSError):  # it is another user's, in use, or was deleted meanwhile
        lock = os.open(directory / _LOCK, os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory)
        finally:
            os.close(lock)


def user_cache(name: str) -> Path:
    """Returns ``$XDG_CACHE_HOME/bert_jax/NAME``, or the same in ``~/.cache``; it need not exist."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "bert_jax" / name
