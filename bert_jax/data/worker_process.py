"""Setup of worker processes, and the cores for them."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing import queues, resource_tracker, spawn
from typing import Final


def available_cores() -> int:
    """Returns the number of cores that this process may use; the machine may have more."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def prepare_worker(index: int, count: int) -> None:
    """Sets up a loader's worker so that it ends with its parent and never opens an accelerator."""
    del index, count  # arguments from Grain that are not needed
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the parent ends its workers
    os.environ["JAX_PLATFORMS"] = "cpu"
    if "jax" in sys.modules:  # Grain imported JAX, which has already read the environment
        sys.modules["jax"].config.update("jax_platforms", "cpu")
    # A hook of multiprocessing that its types leave out.
    setattr(queues.Queue, "_on_queue_feeder_error", staticmethod(_end_without_batch))  # noqa: B010
    end_with_parent()


def _end_without_batch(error: Exception, batch: object) -> None:
    """Ends this process, because it cannot send a batch. By default, the batch would be left out.

    The usual reason is a full memory.
    """
    os._exit(1)


def start_resource_tracker() -> None:
    """Starts the process that frees the workers' semaphores, which would otherwise start later.

    If this process ends with `os._exit`, that process frees them too, but without its warning.
    """
    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = "ignore"
    try:
        resource_tracker.ensure_running()
    finally:
        del os.environ["PYTHONWARNINGS"]
        if before is not None:
            os.environ["PYTHONWARNINGS"] = before


def end_with_parent() -> None:
    """Ends this process when its parent ends, because a killed parent cannot stop its workers."""
    threading.Thread(target=_wait_for_parent, name="end-with-parent", daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


_HIDING: Final = threading.local()
_MAIN: Final = ("init_main_from_name", "init_main_from_path")
# Prefix of the names of Grain's workers. Grain starts them in its own threads.
_LOADER: Final = "grain-process-prefetch"


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Within the block, processes that this thread starts do not import the main script.

    By default `multiprocessing` runs the user's script in every new process. Our processes need
    only modules. Without the import, a script or notebook needs no ``if __name__ == "__main__":``.
    """
    before = getattr(_HIDING, "now", False)
    _HIDING.now = True
    try:
        yield
    finally:
        _HIDING.now = before


_preparation_data = spawn.get_preparation_data


def _preparation_without_main(name: str) -> dict[str, object]:
    found = _preparation_data(name)
    if getattr(_HIDING, "now", False) or name.startswith(_LOADER):
        return {key: value for key, value in found.items() if key not in _MAIN}
    return found


# "spawn" and "forkserver" call this function for each process that they start. multiprocessing has
# no setting to leave out the main script.
spawn.get_preparation_data = _preparation_without_main
