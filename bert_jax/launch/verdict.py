"""Whether an attempt's machines still help, when a job is given up, where it is tried next."""

import dataclasses
import itertools
from typing import Final

from bert_jax.launch.heartbeats import HeartbeatAges, Hosts
from bert_jax.launch.job import Job
from bert_jax.launch.launcher import Observation, State
from bert_jax.launch.supervisor_state import AttemptRecord, End, Outcome, SupervisorState

_NEARLY: Final = 0.95
_ROUNDS: Final = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class WatchPace:
    """How often a supervisor looks, and how long it waits, in seconds."""

    poll: float = 60.0  # between two looks
    start: float = 2700.0  # from the first sight of machines to the first report of each host
    silence: float = 900.0  # between two reports of a host, and from one host's end to all others'
    settle: float = 180.0  # from a request to the first sight of its machines
    tell: float = 50.0  # between two lines: under a minute, so that each look has one


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The end of an attempt."""

    end: End
    reason: str  # in words
    outcome: Outcome | None = None  # of the job; None: another attempt follows


def of_run(hosts: Hosts) -> Verdict | None:
    """Returns the end of the run; None if it goes on."""
    if hosts.done:
        return Verdict("over", _at_step(hosts), "done")
    if hosts.failed is None:
        return None
    worker, host = hosts.failed
    reason = f"worker {worker}: {host.message or f'exit code {host.exit_code}'}"
    if host.exit_code is None:  # before the run began: perhaps only this machine fails
        return Verdict("broken", reason)
    return Verdict("over", reason, "failed")


def begins(record: AttemptRecord, seen: Observation) -> bool:
    """Returns whether this is the first observation of a start, or of a restart of pods."""
    if seen.state is State.STARTING:
        return record.up_from is None or record.state is not State.STARTING
    if seen.state is State.ACTIVE:
        return record.up_from is None or record.state not in (State.STARTING, State.ACTIVE)
    return False


def of_machines(
    job: Job, record: AttemptRecord, seen: Observation, *, now: float, pace: WatchPace
) -> Verdict | None:
    """Returns why machines are of no use; None if they may be."""
    detail = f": {seen.message}" if seen.message else ""
    asked = now - (record.created or now)
    patience = job.wait_hours
    waited = patience is not None and asked >= patience * 3600
    # The service itself ends a request that has waited too long, by its own clock.
    expired = patience is not None and asked >= _NEARLY * patience * 3600
    if seen.state is State.SUSPENDED:
        return Verdict("taken", f"suspended{detail}")
    if seen.state is State.ABSENT and asked > pace.settle:
        return Verdict("taken", "deleted by somebody else")
    if seen.state is State.WAITING and waited and record.bills_from is None:
        return Verdict("capacity", f"none within {patience:g} h{detail}")
    if seen.state is State.FAILED:
        never = expired and record.bills_from is None
        return Verdict("capacity" if never else "broken", f"failed{detail}")
    up = now - (record.up_from or now)
    if seen.state is State.STARTING and up > pace.start:
        return Verdict("broken", f"not started within {up / 60:.0f} min{detail}")
    return None


def of_silence(
    record: AttemptRecord, hosts: Hosts, ages: HeartbeatAges, *, now: float, pace: WatchPace
) -> Verdict | None:
    """Returns which host of active machines is silent; None if none is.

    Once a host is done, the run is. Others that are not done a while later hang, or wait for it.
    """
    finished = ages.since_finished(now)
    if finished is not None:
        return Verdict("over", _at_step(hosts), "done") if finished > pace.silence else None
    up = now - (record.up_from or now)
    if hosts.missing and up > pace.start:
        which = ", ".join(map(str, hosts.missing[:8]))
        return Verdict("broken", f"worker {which} has not started within {up / 60:.0f} min")
    worker, silent = ages.longest(hosts, now)
    if silent > pace.silence:
        return Verdict("broken", f"worker {worker} has been silent for {silent / 60:.0f} min")
    return None


def _at_step(hosts: Hosts) -> str:
    return "" if hosts.step is None else f"at step {hosts.step}"


def hopeless(job: Job, state: SupervisorState) -> str | None:
    """Returns why another attempt would fail like the last ones; None if it may work."""
    last = state.attempts[-1]
    if last.end != "broken":
        return None
    kinds = [(one.end, one.bills_from is None, one.step) for one in reversed(state.attempts)]
    alike = len(list(itertools.takewhile(lambda kind: kind == kinds[0], kinds)))
    if last.bills_from is None:
        most = _ROUNDS * len(job.placements)
        return f"{most} requests in a row came to nothing" if alike >= most else None
    if alike < 2:
        return None
    where = "before its first step" if last.step is None else f"at step {last.step}"
    return f"failed {where} twice"


def reached(job: Job, state: SupervisorState, *, now: float, margin_seconds: float) -> str | None:
    """Returns which limit is reached, in words; None if none is.

    Limits are checked again after `margin_seconds`, and the cost may not pass its limit before
    that. `now` is in seconds since 1970.
    """
    limits = job.submit.limits
    if (restarts := len(state.restarts)) > limits.retries:
        last = state.restarts[-1]
        return f"limits.retries: {restarts} attempts have ended, the last: {last.reason}"
    if limits.hours is not None and state.hours(now) >= limits.hours:
        return f"limits.hours: {limits.hours:g} have passed since the first request"
    soon = now + margin_seconds if state.current is not None else now
    if limits.cost is not None and state.dollars(job.placements, soon) >= limits.cost:
        spent = state.dollars(job.placements, now)
        return f"limits.cost: ${spent:,.2f} of ${limits.cost:,.2f} are spent"
    return None


def next_placement(job: Job, state: SupervisorState) -> int | str:
    """Returns the index of the placement to try next, or why there is none.

    After a preemption the first placement follows, after a lack of machines the next one. A round
    in which no placement had machines ends the job, unless it may wait for ever.
    """
    if not state.attempts or state.attempts[-1].end == "taken":
        return 0
    count = len(job.placements)
    ends = {record.end for record in state.attempts[-count:]}
    whole_round = len(state.attempts) >= count and ends <= {"quota", "capacity"}
    if whole_round and (ends == {"quota"} or job.submit.limits.wait_hours is not None):
        tried = [(job.placements[each.placement], each.reason) for each in state.attempts[-count:]]
        places = [
            f"{place.on}{f' in {place.zone}' if place.zone else ''}: {reason}"
            for place, reason in tried
        ]
        return f"no machines could be had ({'; '.join(places)})"
    return (state.attempts[-1].placement + 1) % count
