"""Setup of worker processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading


def prepare_worker(index: int, count: int) -> None:
    """Sets up a loader's worker: it ends with its parent and never opens an accelerator.

    Args:
        index: of the worker; passed by Grain.
        count: number of workers.
    """
    del index, count
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
