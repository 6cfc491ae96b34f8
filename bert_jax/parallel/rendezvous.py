"""The processes of a job report to process 0 before they join JAX's coordination service.

If a process does not join in time, JAX aborts the other processes in C++ without naming the missing
one. Therefore, process 0 first listens on the coordinator's port itself. Every other process
reports repeatedly until process 0 answers with the outcome. Then JAX takes over the port.
"""

import contextlib
import dataclasses
import json
import os
import socket
import socketserver
import time
from collections.abc import Callable
from typing import Any, Final

from bert_jax.errors import (
    KeyedError,
    PeerLost,
    UserError,
    commas,
    error_from_json,
    error_to_json,
    first_line,
)
from bert_jax.parallel.channel import Member
from bert_jax.parallel.same_settings import Difference, Flat, difference_error, first_difference

_RETRY_SECONDS: Final = 0.2
_REPORTS_A_SECOND: Final = 200  # capacity of process 0
# A process that has not reported for longer may have been restarted under another process id.
_ALIVE_SECONDS: Final = 3.0
# Time limit for process 0 to send the outcome to all processes. A preempted machine has half a
# minute.
_VERDICT_SECONDS: Final = 15.0
_LONGEST: Final = 1 << 22  # bytes of a report

Members = dict[int, Member]


class StopRequested(Exception):
    """A process received a signal before all had reported. The argument is the signal's name."""


@dataclasses.dataclass(frozen=True)
class Meeting:
    """Address and time limit of the reports, and the content of this process's report."""

    host: str
    port: int
    count: int
    index: int  # index of this process
    seconds: float  # time limit
    command: Flat  # settings that must be equal in all processes
    signal: Callable[[], str]  # returns the name of a received signal, or ""
    error: UserError | None = None  # error of this process, which ends all of them
    began: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"{self.host}:{self.port}"

    @property
    def is_over(self) -> bool:
        """Whether the time limit is exceeded."""
        return time.monotonic() > self.began + self.seconds


def meet(meeting: Meeting) -> Members:
    """Waits until all processes have reported, and returns them by index.

    Raises:
        PeerLost: a process did not report in time.
        UserError: commands or numbers of processes differ, two processes have the same index, or a
            process has reported an error.
        StopRequested: a process received a signal.
    """
    me = Member(meeting.index, socket.gethostname(), os.getpid())
    if meeting.index:
        return _report(meeting, me)
    with _listen(meeting, me) as host:
        return _members(host.run())


class _Host(socketserver.TCPServer):
    """Process 0: receives all reports, on all network interfaces like JAX's coordinator."""

    allow_reuse_address = True
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    request_queue_size = 1024
    timeout = _RETRY_SECONDS

    def __init__(self, meeting: Meeting, me: Member) -> None:
        self._meeting, self._members, self._reported = meeting, {0: me}, {0: float("inf")}
        self._differences: dict[int, Difference | None] = {0: None}
        self._outcome: dict[str, Any] = {}
        self._informed = {0}
        if meeting.error is not None:
            self._fail(meeting.error, me)
        super().__init__(("", meeting.port), _Request)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def run(self) -> dict[str, Any]:
        """Returns the outcome, after the other processes have received it."""
        meeting = self._meeting
        while not self._outcome:
            self.handle_request()
            if name := meeting.signal():
                self._outcome["stopped"] = name
            elif len(self._members) == meeting.count:
                if (error := difference_error(self._differences, self._members)) is not None:
                    self._refuse(error)
                else:
                    self._outcome["members"] = self._members
            elif meeting.is_over:
                self._refuse(_missing(meeting, self._members))
        early = self._outcome.keys() & {"stopped", "failed"}
        waiting = set(range(meeting.count) if early else self._members)
        ended = time.monotonic()
        while waiting - self._informed and time.monotonic() < ended + _VERDICT_SECONDS:
            self.handle_request()
        return self._outcome

    def hear(
        self, member: Member, count: int, command: Flat, name: str, error: dict[str, Any] | None
    ) -> dict[str, Any]:
        """Records a report. Returns the outcome, which is empty until it is known."""
        me, index, now = self._members[0], member.process, time.monotonic()
        other = self._members.get(index, member)
        if count != self._meeting.count:
            self._refuse(
                UserError(
                    "processes.counts_differ",
                    f"found {count} in {member}, but {self._meeting.count} in {me}",
                    place="mesh.distributed.process_count",
                )
            )
        elif other != member and now < self._reported[index] + _ALIVE_SECONDS:
            self._refuse(
                UserError(
                    "processes.index_twice",
                    f"found {index} in {other} and in {member}, allowed: each index once",
                    place="mesh.distributed.process_index",
                )
            )
        elif error and not self._outcome:
            self._fail(error_from_json(error), member)
        elif name and not self._outcome:
            self._outcome["stopped"] = name
        elif not self._outcome:
            self._members[index], self._reported[index] = member, now
            self._differences[index] = first_difference(command, self._meeting.command)
        if self._outcome:
            self._informed.add(index)
        return self._outcome

    def _fail(self, error: KeyedError, member: Member) -> None:
        """Makes an error of one process the outcome of all, also of those that report later."""
        self._refuse(error.located(member))
        self._outcome["failed"] = True

    def _refuse(self, error: KeyedError) -> None:
        self._outcome["error"] = error_to_json(error)


class _Request(socketserver.StreamRequestHandler):
    """Handles a report. The report and the answer are one line of JSON each."""

    server: _Host  # pyright: ignore[reportIncompatibleVariableOverride]
    timeout = 2.0  # seconds to wait for a client that sends nothing

    def handle(self) -> None:
        # Another program may connect and send something else.
        with contextlib.suppress(OSError, TypeError, ValueError, KeyError):
            report = json.loads(self.rfile.readline(_LONGEST))
            index, host, pid, count, command, name, error = report
            member = Member(int(index), str(host), int(pid))
            answer = self.server.hear(member, int(count), dict(command), str(name), error)
            self.wfile.write(json.dumps(answer).encode())


def _listen(meeting: Meeting, me: Member) -> _Host:
    """Starts to listen as process 0. Retries while an earlier run still uses the port."""
    while True:
        try:
            return _Host(meeting, me)
        except OSError as error:
            with contextlib.suppress(OSError, ValueError):
                # If another process 0 of this job has the port, it refuses this process.
                _members(_ask(meeting, me, host="localhost"))
            if meeting.is_over:
                raise UserError(
                    "processes.port",
                    f"cannot use {meeting.port} on {me.host} ({error.strerror}). Is it in use?",
                    place="mesh.distributed.coordinator_port",
                ) from error
            time.sleep(_RETRY_SECONDS)


def _report(meeting: Meeting, me: Member) -> Members:
    """Reports to process 0 until it answers with the outcome.

    While process 0 answers, the time limit is extended: it may still name missing processes.
    """
    why, last = "no answer", 0.0  # `last` is the time of process 0's last answer
    signalled: float | None = None
    while not meeting.is_over or time.monotonic() < last + _VERDICT_SECONDS:
        if meeting.signal():
            signalled = signalled or time.monotonic()
            if time.monotonic() > signalled + _VERDICT_SECONDS:
                raise StopRequested(meeting.signal())
        try:
            if answer := _ask(meeting, me):
                return _members(answer)
            last = time.monotonic()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or first_line(error)
        time.sleep(max(_RETRY_SECONDS, meeting.count / _REPORTS_A_SECOND))
    raise PeerLost(
        "processes.first_missing",
        f"process 0 of {meeting.count} did not answer at {meeting.address} in "
        f"{meeting.seconds:.3g} s ({why}). This is {me}. Run the same command on every host.",
        place="mesh.distributed",
    )


def _ask(meeting: Meeting, me: Member, *, host: str | None = None) -> dict[str, Any]:
    """Sends a report to process 0 and returns the answer."""
    with socket.create_connection((host or meeting.host, meeting.port), timeout=5.0) as connection:
        error = meeting.error and error_to_json(meeting.error)
        report = [*me, meeting.count, meeting.command, meeting.signal(), error]
        connection.sendall(json.dumps(report).encode() + b"\n")
        return json.loads(connection.makefile("rb").read())


def _members(outcome: dict[str, Any]) -> Members:
    if "error" in outcome:
        raise error_from_json(outcome["error"])
    if "stopped" in outcome:
        raise StopRequested(outcome["stopped"])
    return {int(index): Member(*found) for index, found in outcome.get("members", {}).items()}


def _missing(meeting: Meeting, here: Members) -> PeerLost:
    names = os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
    named = len(names) == meeting.count and all(names)
    missing = [
        f"process {index}" + (f" ({names[index]})" if named else "")
        for index in range(meeting.count)
        if index not in here
    ]
    return PeerLost(
        "processes.missing",
        f"{len(here)} of {meeting.count} processes reported to {meeting.address} within "
        f"{meeting.seconds:.3g} s. Missing: {commas(missing)}. Found: "
        f"{commas([str(here[index]) for index in sorted(here)])}. Run the same command on every "
        "host.",
        place="mesh.distributed",
    )
