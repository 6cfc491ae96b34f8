"""Whether an attempt's machines are of use, when a job is given up, where it is tried next."""

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
    """How often a supervisor looks, and how long it is patient, in seconds."""

    poll: float = 60.0  # between two looks
    # From machines first seen to start to the first word of each host, which installs first
    start: float = 2700.0
    # Of a host that has spoken before: it speaks every minute. And from one host's end to all's
    silence: float = 900.0
    settle: float = 180.0  # for a machine just asked for to be seen
    tell: float = 50.0  # between two lines: under a minute, so that each look has one


@dataclasses.dataclass(frozen=True)
class Verdict:
    """An attempt is at its end."""

    end: End  # of the attempt
    reason: str  # in words
    outcome: Outcome | None = None  # of the job, which is over too; None: another attempt follows


def of_run(hosts: Hosts) -> Verdict | None:
    """Returns how the run has ended; None: it has not."""
    if hosts.done:
        return Verdict("over", _at_step(hosts), "done")
    if hosts.failed is None:
        return None
    worker, host = hosts.failed
    reason = f"worker {worker}: {host.message or f'exit code {host.exit_code}'}"
    if host.exit_code is None:  # before the run began: perhaps this machine's own trouble
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
    """Returns why machines will not do the work; None: they may."""
    detail = f": {seen.message}" if seen.message else ""
    asked = now - (record.created or now)
    patience = job.wait_hours
    waited = patience is not None and asked >= patience * 3600
    # A service ends a request that has waited for too long by itself, by its own clock.
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
    """Returns which host of active machines does not speak; None: all do.

    Once a host is done, the run is: others that are not, a while later, hang or wait for it.
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
    """Returns why another attempt would end as the last ones; None: it may not."""
    last = state.attempts[-1]
    if last.end != "broken":
        return None
    alike = list(
        itertools.takewhile(
            lambda record: (
                record.end == "broken"
                and (record.bills_from is None) == (last.bills_from is None)
                and record.step == last.step
            ),
            reversed(state.attempts),
        )
    )
    if last.bills_from is None:
        most = _ROUNDS * len(job.placements)
        return f"{most} requests in a row came to nothing" if len(alike) >= most else None
    if len(alike) < 2:
        return None
    return (
        f"failed {'before its first step' if last.step is None else f'at step {last.step}'} twice"
    )


def reached(job: Job, state: SupervisorState, *, now: float, margin_seconds: float) -> str | None:
    """Returns which limit is reached, in words; None: none is.

    They are looked at again after `margin_seconds`: cost may not pass its limit by then. `now` is
    in seconds since 1970.
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
    """Returns the index of where to try next, or why there is nowhere.

    After machines that were taken back, the first again; after a place that has none, the next. A
    round in which no place had any ends the job, unless it may wait for ever.
    """
    if not state.attempts or state.attempts[-1].end == "taken":
        return 0
    count = len(job.placements)
    refused = list(
        itertools.takewhile(
            lambda record: record.end in ("quota", "capacity"), reversed(state.attempts)
        )
    )[:count]
    hopeless = all(record.end == "quota" for record in refused)
    if len(refused) == count and (hopeless or job.submit.limits.wait_hours is not None):
        tried = [(job.placements[record.placement], record.reason) for record in reversed(refused)]
        places = [
            f"{place.on}{f' in {place.zone}' if place.zone else ''}: {reason}"
            for place, reason in tried
        ]
        return f"no machines could be had ({'; '.join(places)})"
    return (state.attempts[-1].placement + 1) % count
