"""SIGTERM and Ctrl-C, heard by a thread of their own.

Python runs a handler between two instructions of the main thread. A signal that comes while that
thread compiles, waits for a device or for another process, in C++, would be heard when it is done,
and the machine gone by then. The interpreter itself writes the signal's number to a pipe at once.
"""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any, Final, Self

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

Handler = Callable[[int, Any], None]  # (number of the signal, frame)


class SignalPipe:
    """Hears both signals until `close`; as a context manager, in the block."""

    def __init__(self, hear: Callable[[int], None], *, handler: Handler = lambda *_: None) -> None:
        """Puts the handlers in place; call it in the main thread.

        `hear` is called with a signal's number, in the thread; `handler` too, in the main thread
        when Python comes to it.
        """
        self._hear = hear
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._thread = threading.Thread(target=self._run, daemon=True, name="signals")
        self._thread.start()
        self._woken = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, handler) for number in _SIGNALS}

    def give_back(self, number: int) -> None:
        """Gives one signal back to the handler before."""
        signal.signal(number, self._before[signal.Signals(number)])

    def close(self) -> None:
        """Gives the signals back; `hear` has returned for all of them by then."""
        signal.set_wakeup_fd(self._woken)
        for number in self._before:
            self.give_back(number)
        os.close(self._write)  # ends the thread
        self._thread.join()
        os.close(self._read)

    def _run(self) -> None:
        while heard := os.read(self._read, 1):
            if heard[0] in _SIGNALS:
                self._hear(heard[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
