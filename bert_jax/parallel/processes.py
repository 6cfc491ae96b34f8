"""The processes of a job: joining them, and leaving them."""

import atexit
import os
import socket
import sys
import threading
import time
from types import TracebackType
from typing import Final

import jax
from jax._src import clusters
from jax.experimental import multihost_utils

from bert_jax.errors import UNCAUGHT, PeerLost, UserError, first_line
from bert_jax.files.read import is_whole
from bert_jax.parallel.channel import Channel, current_channel, end_now, set_channel
from bert_jax.parallel.roll_call import Meeting, meet
from bert_jax.parallel.section import LAST_PORT, DistributedSection
from bert_jax.parallel.stop_signal import STOP

# JAX's own notice of a death comes late and with a C++ trace: `Channel` is faster, and has the say.
_NEVER_SECONDS = 86_400


def join(section: DistributedSection, *, compute: bool = True) -> None:
    """Waits for the other processes and joins them; once in a process's life.

    With `compute` all of them compute together; else one works and the others wait for it. Raises
    PeerLost if one did not come in time, or UserError if they do not agree on how many they are, or
    JAX has been joined to others.
    """
    if current_channel() is not None:
        return
    if jax.distributed.is_initialized():
        raise UserError(
            "mesh.distributed: found processes joined by jax.distributed.initialize, allowed: "
            "leaving that to mesh.distributed.enabled, which also hears signals and deaths"
        )
    # Where JAX finds the coordinator by itself (Cloud TPU), it reads the port from here alone.
    os.environ.setdefault("JAX_COORDINATOR_PORT", str(section.coordinator_port))
    meeting = _meeting(section)
    if meeting.count == 1:
        STOP.release()
        return
    try:
        present = meet(meeting)
    except PeerLost:
        STOP.release()  # a process that was asked to stop ends by that
        raise
    channel = Channel(meeting.index, present, silence_seconds=section.silence_seconds)
    set_channel(channel)
    STOP.agree_over(channel, multihost_utils.reached_preemption_sync_point)
    channel.start()
    channel.exchange(None)  # then every process reads what is sent over the channel
    STOP.release()
    atexit.register(channel.leave)  # before JAX's exit handler, which takes the coordinator away
    _report_errors(channel)
    if compute:
        _join_jax(meeting, channel)
        STOP.listen_again()  # JAX has put a handler of its own in the place of ours


def _join_jax(meeting: Meeting, channel: Channel) -> None:
    # JAX's errors end the process in C++. Ours are said first, by the channel.
    address = meeting.address
    if meeting.index:
        address = Relay(meeting.host, meeting.port, timeout=meeting.timeout).address
    channel.jax_joined = True
    try:
        jax.distributed.initialize(
            coordinator_address=address,
            num_processes=meeting.count,
            process_id=meeting.index,
            initialization_timeout=max(1, round(meeting.timeout)),
            heartbeat_timeout_seconds=_NEVER_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        channel.explain()
        raise PeerLost(
            f"mesh.distributed: all {meeting.count} processes were there, but did not join at "
            f"{meeting.address} ({first_line(error)})"
        ) from error


def is_first() -> bool:
    """Says whether this process does what is done once, such as writing a file."""
    channel = current_channel()
    return channel is None or channel.index == 0


def _report_errors(channel: Channel) -> None:
    """Lets the others know of an error that ends this process, unless it comes of one of them."""
    show = sys.excepthook

    def report(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        channel.explain()
        show(kind, error, traceback)
        channel.fail(UNCAUGHT, f"{kind.__name__}: {first_line(error)}")
        end_now(UNCAUGHT)

    sys.excepthook = report


def _meeting(section: DistributedSection) -> Meeting:
    """Returns where to meet, found by JAX where the section does not say it."""
    address = section.coordinator_address
    if address is not None and ":" not in address:
        address = f"{address}:{section.coordinator_port}"
    count, index = section.process_count, section.process_index
    if None in (address, count, index):
        try:
            address, count, index, _ = clusters.ClusterEnv.auto_detect_unset_distributed_params(
                address, count, index, None, None, section.timeout_seconds
            )
        except (RuntimeError, ValueError, OSError) as error:
            raise UserError(
                f"mesh.distributed: where the processes meet is not set and cannot be found "
                f"({first_line(error)})"
            ) from error
    for key, value in (
        ("coordinator_address", address),
        ("process_count", count),
        ("process_index", index),
    ):
        if value is None:
            raise UserError(
                f"mesh.distributed.{key}: found nothing, here or in the environment of a TPU or "
                f"cluster; allowed: setting it"
            )
    assert address is not None
    assert count is not None
    assert index is not None
    if index >= count:
        raise UserError(
            f"mesh.distributed.process_index: found {index}, allowed: 0 to {count - 1} of "
            f"{count} processes"
        )
    host, _, port = address.rpartition(":")
    if not is_whole(port) or int(port) > LAST_PORT:
        raise UserError(
            f"mesh.distributed.coordinator_address: found {address}, allowed: HOST or HOST:PORT, "
            f"with a port up to {LAST_PORT}"
        )
    return Meeting(
        host.strip("[]"),
        int(port),
        count,
        index,
        float(section.timeout_seconds),
        stop_requested=lambda: STOP.is_asked,
    )


_AGAIN_SECONDS: Final = 0.1


class Relay:
    """A way to the coordinator that stays open when the coordinator is gone.

    JAX's client of the coordination service ends its process, with a C++ trace and no hook that
    works from Python, as soon as its connection breaks. So it connects to a port of loopback in its
    own process, which forwards. What the death of process 0 means, the `Channel` says.
    """

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
