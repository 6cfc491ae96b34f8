"""Joins the processes of a job."""

import dataclasses
import os
import sys
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, cast

import jax

# JAX has no public API for its key-value store and for the addresses that it detects
# (docs/adr/0012-processes.md). Only this file imports private names of JAX for processes.
from jax._src import clusters, distributed

from bert_jax.data.host_share import HostShare
from bert_jax.errors import UNCAUGHT, PeerLost, UserError, first_line
from bert_jax.files.read import is_whole
from bert_jax.parallel.channel import PEER_LOST, Channel, current_channel, end_now
from bert_jax.parallel.compiling import quiet_cpp
from bert_jax.parallel.rendezvous import Meeting, StopRequested, meet
from bert_jax.parallel.same_settings import flatten
from bert_jax.parallel.section import LAST_PORT, DistributedSection
from bert_jax.parallel.stop_signal import STOP
from bert_jax.version import __version__

_JOIN_SECONDS: Final = 30  # time limit, after all processes have reported


def join(
    section: DistributedSection,
    *,
    command: Mapping[str, Any] | None = None,
    error: UserError | None = None,
) -> None:
    """Waits for the other processes and joins them. Later calls do nothing.

    `command` is the command and settings of this process, as nested plain JSON. `error` is an error
    of this process: all processes raise it instead of joining.

    Raises:
        PeerLost: a process did not report in time.
        UserError: the commands differ, or JAX has already joined other processes.
    """
    if current_channel() is not None:
        return
    if jax.distributed.is_initialized():
        raise UserError(
            "processes.joined_already",
            "JAX has joined them already. Use mesh.distributed.enabled instead of its call.",
            place="mesh.distributed",
        )
    meeting = dataclasses.replace(_meeting(section, command), error=error)
    if meeting.count == 1:
        STOP.release()
        return
    try:
        members = meet(meeting)
    except StopRequested as stop:
        STOP.end_without_a_step(str(stop))
    except PeerLost:
        STOP.release()  # if a signal was received, ends the process for that reason
        raise
    _join_jax(meeting, silence_seconds=section.silence_seconds)
    channel = Channel(
        meeting.index,
        members,
        client=distributed.global_state.client,
        silence_seconds=section.silence_seconds,
    )
    _report_errors(channel)
    channel.open()
    STOP.agree_over(channel)


def is_first_alone(section: DistributedSection, command: Mapping[str, Any]) -> bool:
    """Returns whether this is process 0, for verbs that only process 0 runs.

    Waits for the other processes and raises like `join`, but does not join JAX's service.
    """
    meeting = _meeting(section, command)
    if meeting.count > 1:
        meet(meeting)
    return meeting.index == 0


def place_in_job(section: DistributedSection) -> HostShare:
    """Returns the index of this process and the number of processes. Waits for no other process.

    Raises UserError if neither the section nor the environment has them.
    """
    # Such a job needs no address. A missing one must not fail the detection of the others.
    own = section.model_copy(update={"coordinator_address": section.coordinator_address or "self"})
    meeting = _meeting(own, None)
    return HostShare(meeting.index, meeting.count)


def is_first() -> bool:
    """Returns whether this is process 0, which does shared work such as writing a file."""
    channel = current_channel()
    return channel is None or channel.index == 0


def _join_jax(meeting: Meeting, *, silence_seconds: float) -> None:
    """Joins the coordination service. Raises PeerLost if a process died after its report."""
    # Without this option, JAX aborts all processes if one dies. With it, the surviving processes
    # print an error and exit with code 4.
    jax.config.update("jax_enable_recoverability", True)
    # The service would replace our handler of SIGTERM, ignore Ctrl-C and wait for compilations.
    jax.config.update("jax_enable_preemption_service", False)
    not_joined = _not_joined(meeting, f"no answer within {_JOIN_SECONDS} s")
    late = threading.Timer(_JOIN_SECONDS, end_now, (PEER_LOST, not_joined.line()))
    late.daemon = True
    late.start()
    try:
        with quiet_cpp():  # suppresses the warning that recoverability is experimental
            jax.distributed.initialize(
                coordinator_address=meeting.address,
                num_processes=meeting.count,
                process_id=meeting.index,
                initialization_timeout=2 * _JOIN_SECONDS,
                heartbeat_timeout_seconds=round(silence_seconds),
            )
    except (RuntimeError, ValueError) as error:
        raise _not_joined(meeting, first_line(error)) from error
    finally:
        late.cancel()


def _not_joined(meeting: Meeting, reason: str) -> PeerLost:
    return PeerLost(
        "processes.not_joined",
        f"{meeting.count} processes at {meeting.address} could not join ({reason})",
        place="mesh.distributed",
    )


def _report_errors(channel: Channel) -> None:
    """Makes an uncaught error inform the other processes and end this process.

    If another process died, reports its death instead, because it may be the cause.
    """
    show = sys.excepthook

    def report(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        channel.explain()
        show(kind, error, traceback)
        end_now(UNCAUGHT, f"{kind.__name__}: {first_line(error)}", printed=True)

    sys.excepthook = report


def _meeting(section: DistributedSection, command: Mapping[str, Any] | None) -> Meeting:
    """Returns the address and indices from the section; JAX detects missing values."""
    # On Cloud TPU, JAX detects the coordinator's address but reads the port from this variable.
    os.environ.setdefault("JAX_COORDINATOR_PORT", str(section.port))
    address = section.coordinator_address
    if address is not None and ":" not in address:
        address = f"{address}:{section.port}"
    known = (address, section.process_count, section.process_index)
    if None in known:
        try:
            *known, _ = clusters.ClusterEnv.auto_detect_unset_distributed_params(
                *known, None, None, section.timeout_seconds
            )
        except (RuntimeError, ValueError, OSError) as error:
            raise UserError(
                "processes.not_found",
                f"not found ({first_line(error)}). Set coordinator_address and process_index.",
                place="mesh.distributed",
            ) from error
    keys = ("coordinator_address", "process_count", "process_index")
    for key, value in zip(keys, known, strict=True):
        if value is None:
            raise UserError(
                "processes.not_set",
                "missing, and the environment of a TPU or cluster does not have it. Set it.",
                place=f"mesh.distributed.{key}",
            )
    address, count, index = cast(tuple[str, int, int], tuple(known))
    if index >= count:
        raise UserError.wrong(
            "processes.index", index, f"0 to {count - 1}", place="mesh.distributed.process_index"
        )
    host, _, port = address.rpartition(":")
    if not is_whole(port) or int(port) > LAST_PORT:
        raise UserError(
            "processes.address",
            f"found {address}, allowed: HOST or HOST:PORT, with a port up to {LAST_PORT}",
            place="mesh.distributed.coordinator_address",
        )
    return Meeting(
        host.strip("[]"),
        int(port),
        count,
        index,
        float(section.timeout_seconds),
        {"bert_jax": f'"{__version__}"', **flatten(command or {})},
        lambda: STOP.name,
    )
