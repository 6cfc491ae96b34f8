"""When a job is given up, and where it is tried next."""

import itertools
from collections.abc import Sequence
from typing import Final

from bert_jax.launch.job import Job
from bert_jax.launch.supervisor_state import AttemptRecord, SupervisorState

_SOON_HOURS: Final = 0.25
"""For how long one of several placements is waited for, where `wait_hours` says nothing."""


def wait_hours(job: Job) -> float | None:
    """Returns how long one request may wait for capacity; None: for ever."""
    if job.submit.limits.wait_hours is not None:
        return job.submit.limits.wait_hours
    return _SOON_HOURS if len(job.placements) > 1 else None


def reached(job: Job, state: SupervisorState, *, now: float, margin_seconds: float) -> str | None:
    """Returns which limit is reached, in words; None: none is.

    Args:
        job: with its limits.
        state: so far.
        now: seconds since 1970.
        margin_seconds: until the limits are looked at again: cost may not pass its limit by then.
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
        return _nowhere(job, refused)
    return (state.attempts[-1].placement + 1) % count


def _nowhere(job: Job, refused: Sequence[AttemptRecord]) -> str:
    places = [
        f"{place.on}{f' in {place.zone}' if place.zone else ''}: {record.reason}"
        for record in reversed(refused)
        for place in (job.placements[record.placement],)
    ]
    return f"no machines could be had ({'; '.join(places)})"
