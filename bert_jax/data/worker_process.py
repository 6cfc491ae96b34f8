"""Setup of worker processes."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing import spawn
from typing import Final


def prepare_worker(index: int, count: int) -> None:
    """Sets up a loader's worker: it ends with its parent and never opens an accelerator."""
    del index, count  # which Grain passes
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    os.environ["JAX_PLATFORMS"] = "cpu"
    if "jax" in sys.modules:  # Grain imports it, which has read the environment
        sys.modules["jax"].config.update("jax_platforms", "cpu")
    end_with_parent()


def end_with_parent() -> None:
    """Ends this process when its parent ends: a killed parent cannot stop its workers."""
    threading.Thread(target=_wait_for_parent, name="end-with-parent", daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


_HIDING: Final = threading.local()
_MAIN: Final = ("init_main_from_name", "init_main_from_path")
# How Grain names its workers, which it starts in threads of its own.
_LOADER: Final = "grain-process-prefetch"


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Processes that this thread starts inside the block do not import the main script.

    By default `multiprocessing` runs the user's script in every new process. Our processes need
    only modules. So a script or notebook needs no ``if __name__ == "__main__":`` guard.
    """
    before = getattr(_HIDING, "now", False)
    _HIDING.now = True
    try:
        yield
    finally:
        _HIDING.now = before


_preparation_data = spawn.get_preparation_data


def _without_main_where_asked(name: str) -> dict[str, object]:
    found = _preparation_data(name)
    if getattr(_HIDING, "now", False) or name.startswith(_LOADER):
        return {key: value for key, value in found.items() if key not in _MAIN}
    return found


# "spawn" and "forkserver" call it for each process that they start; they have no setting for it.
spawn.get_preparation_data = _without_main_where_asked
