"""SIGTERM and Ctrl-C, heard by a thread of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def stop_requests(tell: Callable[[], None]) -> Iterator[None]:
    """Calls `tell`, in another thread, for each signal that asks this process to end.

    Python runs a handler between two instructions of the main thread: a signal that comes just
    before that thread waits, for a process or for a pause to pass, would be heard when the wait is
    over, and the machine gone by then. The interpreter writes to a pipe at once.

    Args:
        tell: must not block.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)

    def hear() -> None:
        while heard := os.read(read, 1):
            if heard[0] in _SIGNALS:
                tell()

    before = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
    woken = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    thread = threading.Thread(target=hear, daemon=True, name="signals")
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(write)  # ends the thread
        thread.join()
        os.close(read)
