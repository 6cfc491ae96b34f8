"""Messages between the processes of a job: one JSON object a line, over TCP."""

import json
import socket
import threading
from collections.abc import Mapping
from typing import Any, Final

from bert_jax.errors import PeerLost

_LONGEST: Final = 1 << 20  # bytes of a line: whatever sends more is no process of ours
_SEND_SECONDS: Final = 10.0

Message = dict[str, Any]


class Wire:
    """One end of a connection. Sending is safe from several threads, receiving is for one."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._buffer, self._lock = connection, b"", threading.Lock()
        connection.settimeout(_SEND_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        """Returns the descriptor, for a selector."""
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any]) -> bool:
        """Sends a message; says whether the other end was still there."""
        try:
            with self._lock:
                self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def receive(self) -> list[Message]:
        """Returns the messages that have come; call it when there is something to read.

        Raises PeerLost if the connection is closed, or speaks something else.
        """
        try:
            read = self._socket.recv(1 << 16)
        except OSError as error:
            raise PeerLost(f"its connection broke ({error.strerror or error})") from error
        if not read:
            raise PeerLost("its connection closed")
        *lines, self._buffer = (self._buffer + read).split(b"\n")
        if len(self._buffer) > _LONGEST:
            raise PeerLost("it sent something else than messages")
        try:
            messages = [json.loads(line) for line in lines]
        except (ValueError, RecursionError) as error:
            raise PeerLost("it sent something else than messages") from error
        if not all(isinstance(message, dict) for message in messages):
            raise PeerLost("it sent something else than messages")
        return messages

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()
