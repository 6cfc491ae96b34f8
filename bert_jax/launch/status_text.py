"""The status of a job as lines for a terminal."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from bert_jax.launch.status import JobStatus, Status

_LAST_RESTARTS = 8
_SHOWN_SHARE = 0.0005


def describe_status(status: Status) -> list[str]:
    """Returns lines such as ``step       1,200 of 100,000 (1.2%), loss 6.91, 81,000 tokens/s``."""
    return [f"{name:<11}{text}" for name, text in _lines(status)]


def _lines(status: Status) -> Iterator[tuple[str, str]]:
    job = status.job
    if job is not None:
        yield "job", f"{job.name} ({job.directory})"
    yield "run", status.run_dir
    if job is not None:
        yield from _of_machines(job, status)
    yield "step", _progress(status)
    yield from _of_time(status)
    if job is not None:
        yield from _of_restarts(job)
        if job.dollars is not None:
            yield "cost", _cost(status, job.dollars)
        if job.outcome is not None:
            yield "end", f"{job.outcome}: {job.message}".rstrip(": ")
    yield from _of_the_end(status)


def _of_machines(job: JobStatus, status: Status) -> Iterator[tuple[str, str]]:
    if job.placement is None:
        yield "machines", "none was asked for yet"
        return
    text = f"attempt {job.attempt}, {job.placement.place}: {job.machines.value}"
    if job.machines_message:
        text += f" ({job.machines_message})"
    yield "machines", text + _age(job.machines_seen, status.at)
    if job.hosts and job.outcome is None:
        yield "hosts", ", ".join(f"{count} {state}" for state, count in sorted(job.hosts.items()))
    if job.outcome is None:
        seen = "never" if job.watched is None else f"last at {_time(job.watched)}"
        yield "supervisor", seen + _age(job.watched, status.at)


def _progress(status: Status) -> str:
    run = status.run
    if run.at is None:
        return "none was reported yet"
    parts = [f"{run.step:,}"]
    if run.total_steps:
        parts[0] += f" of {run.total_steps:,} ({run.step / run.total_steps:.1%})"
    if run.loss is not None:
        parts.append(f"loss {run.loss:.3f}")
    if run.tokens_per_second is not None:
        parts.append(f"{run.tokens_per_second:,.0f} tokens/s")
    if run.mfu is not None:
        parts.append(f"MFU {run.mfu:.1%}")
    return ", ".join(parts) + ("" if run.finished else _age(run.at, status.at))


def _of_time(status: Status) -> Iterator[tuple[str, str]]:
    shares = status.shares
    if not shares:
        return
    paid = status.job is not None and status.job.paid_hours > 0
    hours = (
        status.job.paid_hours if status.job and paid else sum(status.run.seconds.values()) / 3600
    )
    lost = sorted(shares.items(), key=lambda item: -item[1])
    rest = ", ".join(
        f"{kind} {share:.1%}" for kind, share in lost if kind != "train" and share >= _SHOWN_SHARE
    )
    text = f"{shares.get('train', 0.0):.1%} of {hours:.2f} {'paid ' if paid else ''}hours"
    yield "goodput", f"{text} trained; {rest}" if rest else f"{text} went into steps"


def _of_restarts(job: JobStatus) -> Iterator[tuple[str, str]]:
    if not job.restarts:
        return
    machines = sum(restart.what == "machines" for restart in job.restarts)
    yield "restarts", f"{machines} of machines, {len(job.restarts) - machines} of a host's run"
    for restart in job.restarts[-_LAST_RESTARTS:]:
        step = "" if restart.step is None else f" at step {restart.step:,}"
        yield "", f"{_time(restart.at)} {restart.what}{step}: {restart.reason}"


def _cost(status: Status, dollars: float) -> str:
    in_all = status.dollars_in_all
    text = f"${dollars:,.2f} so far"
    return text if in_all is None or in_all == dollars else f"{text}, about ${in_all:,.2f} in all"


def _of_the_end(status: Status) -> Iterator[tuple[str, str]]:
    left = status.run.seconds_left
    over = status.job is not None and status.job.outcome is not None
    if status.run.finished:
        yield "ETA", "done"
    elif left is not None and not over:
        yield "ETA", f"{_time(status.at + left)}, in {timedelta(seconds=round(left))} of training"


def _age(at: float | None, now: float) -> str:
    """Returns how old something is, once that is worth saying."""
    if at is None or now - at < 180:
        return ""
    return f", {timedelta(seconds=round(now - at))} ago"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
