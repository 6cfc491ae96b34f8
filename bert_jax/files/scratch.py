"""Temporary directories of this process, and the user's directory of caches."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path


def scratch_directory() -> Path:
    """Returns a new temporary directory, which is deleted when the process ends.

    A process that is killed leaves it to the system. Raises OSError if it cannot be made.
    """
    made = Path(tempfile.mkdtemp(prefix="bert_jax_scratch_"))
    _made.append(made)
    return made


_made: list[Path] = []


@atexit.register
def delete_scratch() -> None:
    """Deletes the temporary directories, also where exit handlers will not run."""
    for directory in _made:
        shutil.rmtree(directory, ignore_errors=True)


def user_cache(name: str) -> Path:
    """Returns ``$XDG_CACHE_HOME/bert_jax/NAME``, or the same in ``~/.cache``; it need not exist."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "bert_jax" / name
