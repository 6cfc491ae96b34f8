"""Who is there: every process of a job reports to process 0 before JAX is asked to join them.

JAX alone ends a job in which a process is missing with a C++ trace that names nobody. The
connections made here stay, see `bert_jax.parallel.channel`; the port itself is given up, JAX's
coordinator takes it.
"""

import dataclasses
import os
import selectors
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from bert_jax.errors import PeerLost, UserError, first_line
from bert_jax.parallel.wire import Message, Wire
from bert_jax.version import __version__

_AGAIN_SECONDS: Final = 0.2
_VERDICT_SECONDS: Final = 10.0  # beyond the time-out, for process 0 to say who is missing
# A process that was asked to stop waits so long: a machine that is preempted has half a minute.
_HURRY_SECONDS: Final = 15.0
_HURRY: Final = "hurry"


class Member(NamedTuple):
    """A process of the job."""

    process: int  # its index
    host: str
    pid: int

    def __str__(self) -> str:
        return f"process {self.process} ({self.host}, pid {self.pid})"


@dataclasses.dataclass(frozen=True)
class Meeting:
    """Where and until when the processes of a job meet."""

    host: str
    port: int
    count: int
    index: int  # of this process
    timeout: float  # seconds
    # Whether this process was asked to stop: the meeting then takes `_HURRY_SECONDS` at most.
    stop_requested: Callable[[], bool] = lambda: False

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"{self.host}:{self.port}"


class _Patience:
    """The time that is left for the processes to meet."""

    def __init__(self, meeting: Meeting) -> None:
        self._stop_requested, self._started = meeting.stop_requested, time.monotonic()
        self.seconds = meeting.timeout  # from the start
        self.hurries = False

    def hurry(self) -> None:
        """Cuts the time short."""
        if not self.hurries:
            waited = time.monotonic() - self._started
            self.hurries, self.seconds = True, min(self.seconds, waited + _HURRY_SECONDS)

    @property
    def left(self) -> float:
        """Seconds; negative when the time is over."""
        if self._stop_requested():
            self.hurry()
        return self._started + self.seconds - time.monotonic()


class Present(NamedTuple):
    """The processes of a job, by index, and this one's connections: to process 0, or from it."""

    members: Mapping[int, Member]
    wires: Mapping[int, Wire]


def meet(meeting: Meeting) -> Present:
    """Returns when all processes are there.

    Raises PeerLost if one is not there in time, or UserError if they do not agree on how many they
    are, or two have one index.
    """
    me = Member(meeting.index, socket.gethostname(), os.getpid())
    if meeting.index == 0:
        return _Caller(meeting, me).call()
    return _answer(meeting, me)


class _Caller:
    """Process 0, which waits for the others."""

    def __init__(self, meeting: Meeting, me: Member) -> None:
        self._meeting, self._patience = meeting, _Patience(meeting)
        self._members: dict[int, Member] = {0: me}
        self._wires: dict[int, Wire] = {}

    def call(self) -> Present:
        """Returns when all are there; tells all of them when one is not, or is one too many."""
        with self._listen() as listener, selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            while len(self._members) < self._meeting.count:
                left = self._patience.left
                if left <= 0:
                    missing = _missing(self._meeting, self._members.values(), self._patience)
                    raise self._end(PeerLost(missing))
                for key, _ in selector.select(min(left, _AGAIN_SECONDS)):
                    if key.fileobj is listener:
                        wire = Wire(listener.accept()[0])
                        selector.register(wire, selectors.EVENT_READ, wire)
                    else:
                        self._hear(key.data, selector)
        self._tell("all_here", members=list(self._members.values()))
        return Present(self._members, self._wires)

    def _listen(self) -> socket.socket:
        meeting = self._meeting
        while True:
            try:
                # As JAX's coordinator does: on all addresses of this host.
                both = socket.has_dualstack_ipv6()
                return socket.create_server(
                    ("", meeting.port),
                    family=socket.AF_INET6 if both else socket.AF_INET,
                    dualstack_ipv6=both,
                    backlog=1024,
                )
            except OSError as error:
                # A former run may still be on its way out, or this is a second process 0.
                if _is_called_elsewhere(meeting, self._members[0]):
                    raise _twice(0, self._members[0]) from error
                if self._patience.left <= 0:
                    raise UserError(
                        f"mesh.distributed.coordinator_port: {meeting.port} cannot be used on "
                        f"{self._members[0].host} ({error.strerror}); is another run still going?"
                    ) from error
                time.sleep(_AGAIN_SECONDS)

    def _hear(self, wire: Wire, selector: selectors.BaseSelector) -> None:
        try:
            for hello in wire.receive():
                if hello.get("kind") == _HURRY:
                    self._patience.hurry()
                    continue
                self._enter(wire, hello)
                self._tell("present", members=list(self._members.values()))
        except (PeerLost, KeyError, TypeError, ValueError):
            selector.unregister(wire)
            wire.close()
            for index in [index for index, held in self._wires.items() if held is wire]:
                del self._wires[index], self._members[index]  # it may come again

    def _enter(self, wire: Wire, hello: Message) -> None:
        member = Member(int(hello["process"]), str(hello["host"])[:255], int(hello["pid"]))
        count, version = int(hello["count"]), str(hello["version"])[:40]
        refusal: UserError | None = None
        if count != self._meeting.count:
            refusal = UserError(
                f"mesh.distributed.process_count: found {count} in {member} and "
                f"{self._meeting.count} in {self._members[0]}; allowed: the same in all processes"
            )
        elif version != __version__:
            refusal = UserError(
                f"bert_jax: found version {version} in {member} and {__version__} in "
                f"{self._members[0]}; allowed: the same in all processes"
            )
        elif member.process in self._members:
            refusal = _twice(member.process, self._members[member.process], member)
        if refusal is not None:
            wire.send({"kind": "refused", "line": str(refusal)})
            raise self._end(refusal)
        self._members[member.process], self._wires[member.process] = member, wire

    def _end(self, error: PeerLost | UserError) -> PeerLost | UserError:
        self._tell("missing" if isinstance(error, PeerLost) else "refused", line=str(error))
        return error

    def _tell(self, kind: str, **values: object) -> None:
        for wire in self._wires.values():
            wire.send({"kind": kind, **values})


def _answer(meeting: Meeting, me: Member) -> Present:
    """Reports to process 0, again and again until it is there."""
    patience = _Patience(meeting)
    members: dict[int, Member] = {me.process: me}
    why = "nothing answers"
    while patience.left > 0:
        try:
            wire = Wire(socket.create_connection((meeting.host, meeting.port), timeout=5))
        except OSError as error:
            why = error.strerror or first_line(error)
            time.sleep(_AGAIN_SECONDS)
            continue
        try:
            wire.send({**me._asdict(), "count": meeting.count, "version": __version__})
            if _wait_until_all(wire, members, patience):
                return Present(members, {0: wire})
        except _Verdict:
            raise
        except PeerLost as error:
            why = str(error)
        wire.close()
        time.sleep(_AGAIN_SECONDS)
    if 0 in members:
        raise PeerLost(_missing(meeting, members.values(), patience))
    raise PeerLost(
        f"mesh.distributed: process 0 of {meeting.count} was not at {meeting.address} within "
        f"{patience.seconds:.3g} s ({why}); here: {me}; is the same command running on every host?"
    )


def _wait_until_all(wire: Wire, members: dict[int, Member], patience: _Patience) -> bool:
    """Returns whether all processes are there in time; enters those that are."""
    told = False
    with selectors.DefaultSelector() as selector:
        selector.register(wire, selectors.EVENT_READ)
        while patience.left + _VERDICT_SECONDS > 0:
            if patience.hurries and not told:
                told = wire.send({"kind": _HURRY})
            if not selector.select(_AGAIN_SECONDS):
                continue
            for message in wire.receive():
                kind = message.get("kind")
                if kind == "refused":
                    raise UserError(str(message.get("line")))
                if kind == "missing":
                    raise _Verdict(str(message.get("line")))
                present = [Member(*entry) for entry in message.get("members", [])]
                members.update({member.process: member for member in present})
                if kind == "all_here":
                    return True
    return False


class _Verdict(PeerLost):
    """What process 0 says of who is missing: no reason to ask it again."""


def _is_called_elsewhere(meeting: Meeting, me: Member) -> bool:
    """Says whether who holds this host's port is another process 0 of this very job."""
    try:
        wire = Wire(socket.create_connection(("localhost", meeting.port), timeout=1))
        wire.send({**me._asdict(), "count": meeting.count, "version": __version__})
        with selectors.DefaultSelector() as selector:
            selector.register(wire, selectors.EVENT_READ)
            return bool(selector.select(2)) and any(
                message.get("kind") == "refused" for message in wire.receive()
            )
    except (OSError, PeerLost):
        return False


def _twice(index: int, *members: Member) -> UserError:
    found = " and ".join(str(member) for member in members)
    return UserError(
        f"mesh.distributed.process_index: found {index} twice, in {found}; allowed: each index once"
    )


def _missing(meeting: Meeting, members: Iterable[Member], patience: _Patience) -> str:
    here = {member.process: member for member in members}
    names = _host_names(meeting.count)
    missing = ", ".join(
        f"process {index}" + (f" ({names[index]})" if names else "")
        for index in range(meeting.count)
        if index not in here
    )
    return (
        f"mesh.distributed: {meeting.count} processes expected at {meeting.address}, "
        f"{len(here)} came within {patience.seconds:.3g} s; missing: {missing}; here: "
        f"{', '.join(str(here[index]) for index in sorted(here))}; is the same command running on "
        f"every host?"
    )


def _host_names(count: int) -> list[str]:
    """Returns the names of a TPU's hosts where the environment has them."""
    names = os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
    return names if len(names) == count and all(names) else []
