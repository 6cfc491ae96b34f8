"""What a worker process does before it works."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading


def prepare_worker(index: int, count: int) -> None:
    """Sets up a loader's worker: it ends with its parent, and can never take an accelerator.

    Args:
        index: of the worker; Grain hands it in.
        count: number of workers.
    """
    del index, count
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which closes its workers
    os.environ["JAX_PLATFORMS"] = "cpu"
    if "jax" in sys.modules:  # Grain has imported it, and with it read the environment, by now
        sys.modules["jax"].config.update("jax_platforms", "cpu")
    end_with_parent()


def end_with_parent() -> None:
    """Lets this process end with its parent: a killed one tells no worker, and they would wait."""
    threading.Thread(target=_wait_for_parent, name="end-with-parent", daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
