"""Temporary directories of this process, and the cache directory of the user."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path


def scratch_directory() -> Path:
    """Creates a temporary directory, which is deleted when the process exits.

    If the process is killed, the directory remains. Raises OSError if it cannot be created.
    """
    made = Path(tempfile.mkdtemp(prefix="bert_jax_scratch_"))
    _made.append(made)
    return made


_made: list[Path] = []


@atexit.register
def delete_scratch() -> None:
    """Deletes the temporary directories. Call it before `os._exit`, which runs no exit handlers."""
    for directory in _made:
        shutil.rmtree(directory, ignore_errors=True)


def user_cache(name: str) -> Path:
    """Returns ``$XDG_CACHE_HOME/bert_jax/NAME``. The variable defaults to ``~/.cache``.

    The directory may not exist yet.
    """
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "bert_jax" / name
