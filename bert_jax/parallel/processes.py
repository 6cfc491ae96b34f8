"""The processes of a job: joining them, and leaving them."""

import atexit
import os
import sys
from types import TracebackType

import jax
from jax._src import clusters
from jax.experimental import multihost_utils

from bert_jax.errors import PeerLost, UserError, first_line
from bert_jax.parallel.channel import Channel, current_channel, end_now, set_channel
from bert_jax.parallel.relay import Relay
from bert_jax.parallel.roll_call import Meeting, meet
from bert_jax.parallel.section import DistributedSection
from bert_jax.parallel.stop_signal import STOP

# JAX's own notice of a death comes late and with a C++ trace: `Channel` is faster, and has the say.
_NEVER_SECONDS = 86_400


def join(section: DistributedSection, *, compute: bool = True) -> None:
    """Waits for the other processes and joins them; once in a process's life.

    Args:
        section: where they meet.
        compute: whether all of them compute together; else one works and the others wait for it.

    Raises:
        PeerLost: one did not come in time.
        UserError: they do not agree on how many they are, or JAX has been joined to others.
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
        return
    present = meet(meeting)
    channel = Channel(meeting.index, present, silence_seconds=section.silence_seconds)
    set_channel(channel)
    channel.start()
    atexit.register(channel.leave)  # before JAX's exit handler, which takes the coordinator away
    _report_errors(channel)
    STOP.agree_over(channel, multihost_utils.reached_preemption_sync_point)
    if compute:
        _join_jax(meeting, channel)
        STOP.listen_again()  # JAX has put a handler of its own in the place of ours


def _join_jax(meeting: Meeting, channel: Channel) -> None:
    # JAX's errors end the process in C++. Ours are said first, by the channel.
    address = meeting.address
    if meeting.index:
        address = Relay(meeting.host, meeting.port, timeout=meeting.timeout).address
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
        channel.fail(1, f"{kind.__name__}: {first_line(error)}")
        end_now(1)

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
    if not port.isdigit():
        raise UserError(
            f"mesh.distributed.coordinator_address: found {address}, allowed: HOST or HOST:PORT"
        )
    return Meeting(host.strip("[]"), int(port), count, index, float(section.timeout_seconds))
