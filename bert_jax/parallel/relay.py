"""A way to the coordinator that stays open when the coordinator is gone.

JAX's client of the coordination service ends its process, with a C++ trace and no hook that works
from Python, as soon as its connection breaks. So it gets a connection to a relay in its own
process. What the death of process 0 means, `bert_jax.parallel.channel` says.
"""

import socket
import threading
import time
from typing import Final

_AGAIN_SECONDS: Final = 0.1


class Relay:
    """Forwards every connection to a port of loopback; lives as long as the process."""

    def __init__(self, host: str, port: int, *, timeout: float) -> None:
        """Opens the port; the coordinator has `timeout` seconds to start."""
        self._upstream, self._deadline = (host, port), time.monotonic() + timeout
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True, name="relay").start()

    def _accept(self) -> None:
        while True:
            downstream, _ = self._listener.accept()
            threading.Thread(
                target=self._forward, args=(downstream,), daemon=True, name="relay"
            ).start()

    def _forward(self, downstream: socket.socket) -> None:
        if (upstream := self._connect()) is None:
            return  # the client's own time-out ends this
        threading.Thread(
            target=_pump, args=(upstream, downstream), daemon=True, name="relay"
        ).start()
        _pump(downstream, upstream)
        upstream.close()  # our side has ended: tell the coordinator

    def _connect(self) -> socket.socket | None:
        while True:
            try:
                upstream = socket.create_connection(self._upstream, timeout=10)
            except OSError:
                if time.monotonic() > self._deadline:
                    return None
                time.sleep(_AGAIN_SECONDS)
            else:
                upstream.settimeout(None)
                return upstream


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Copies until one end is closed, and leaves both as they are."""
    try:
        while read := source.recv(1 << 16):
            sink.sendall(read)
    except OSError:
        pass
