"""`bert-jax status`: the state of a job or a run, from any machine."""

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from etils import epath

from bert_jax.errors import RunStopped, UserError
from bert_jax.files.read import read_text
from bert_jax.launch.gcloud import require_credentials
from bert_jax.launch.heartbeat_reader import step_of
from bert_jax.launch.job import RUN_JOB, JobFiles, find_job, read_job
from bert_jax.launch.launchers import launcher_for
from bert_jax.launch.status import JobStatus, RunFigures, Status, read_run_status, read_status

_LAST_RESTARTS = 8
_SHOWN_SHARE = 0.0005


def status(target: str, *, bucket: str | None = None) -> Status:
    """Returns the status of a job or run: machines, metrics, goodput, cost, ETA.

    ``status("gs://bucket/runs/base").run.step``

    Args:
        target: a run directory, a job's directory or a job's name.
        bucket: bucket of a job given by name. Default: ``$BERT_JAX_BUCKET``.

    Raises:
        UserError: there is no such run or job.
        RunStopped: the bucket of the job does not answer.
    """
    files, now = job_of(target, bucket=bucket), time.time()
    if files is None:
        return read_run_status(epath.Path(os.path.expanduser(target)), now=now)
    try:
        launcher = launcher_for(read_job(files).submit)
    except (UserError, RunStopped):
        launcher = None  # this machine cannot query the launcher
    return read_status(files, launcher, now=now)


def job_of(target: str, *, bucket: str | None) -> JobFiles | None:
    """Returns the job of a directory or name, or None for a run started by hand.

    Raises:
        UserError: there is no such run or job.
    """
    require_credentials(target)
    root = epath.Path(os.path.expanduser(target))
    if (root / RUN_JOB).exists():
        files = JobFiles(epath.Path(read_text(root / RUN_JOB).strip()))
        if files.job.exists():
            return files
    if (root / "config.yaml").exists() and not (root / "job.json").exists():
        return None
    return find_job(target, bucket=bucket, what="run or job")


def describe_status(status: Status) -> list[str]:
    """Returns lines such as ``step       1,200 of 100,000 (1.2%), loss 6.91, 81,000 tokens/s``."""
    return [f"{name:<11}{text}" for name, text in _lines(status)]


def _lines(status: Status) -> Iterator[tuple[str, str]]:
    job, run = status.job, status.run
    if job is not None:
        yield "job", f"{job.name} ({job.directory})"
    yield "run", status.run_dir
    if job is not None:
        yield from _machines(job, now=status.at)
    yield "step", _progress(run) + ("" if run.finished else _age(run.at, status.at))
    if shares := status.shares:
        yield "goodput", _goodput(shares, hours=status.hours, paid=status.paid)
    if job is not None:
        yield from _restarts(job)
        if job.dollars is not None:
            total = status.dollars_in_all
            more = "" if total in (None, job.dollars) else f", about ${total:,.2f} in all"
            yield "cost", f"${job.dollars:,.2f} so far{more}"
        if job.outcome is not None:
            yield "end", f"{job.outcome}: {job.message}".rstrip(": ")
    if status.report is not None:
        yield "report", status.report
    left = run.seconds_left
    if run.finished:
        yield "ETA", "done"
    elif left is not None and (job is None or job.outcome is None):
        yield "ETA", f"{_time(status.at + left)}, in {timedelta(seconds=round(left))} of training"


def _machines(job: JobStatus, *, now: float) -> Iterator[tuple[str, str]]:
    if job.placement is None:
        yield "machines", "not requested yet"
        return
    text = f"attempt {job.attempt}, {job.placement.place}: {job.machines.value}"
    if job.machines_message:
        text += f" ({job.machines_message})"
    yield "machines", text + _age(job.machines_seen, now)
    if job.outcome is not None:
        return
    if job.hosts:
        yield "hosts", ", ".join(f"{count} {state}" for state, count in sorted(job.hosts.items()))
    seen = "never" if job.watched is None else f"last at {_time(job.watched)}"
    yield "supervisor", seen + _age(job.watched, now)


def _progress(run: RunFigures) -> str:
    if run.at is None:
        return "no step reported yet"
    parts = [step_of(run.step, run.total_steps)]
    if run.loss is not None:
        parts.append(f"loss {run.loss:.3f}")
    if run.tokens_per_second is not None:
        parts.append(f"{run.tokens_per_second:,.0f} tokens/s")
    if run.mfu is not None:
        parts.append(f"MFU {run.mfu:.1%}")
    return ", ".join(parts)


def _goodput(shares: dict[str, float], *, hours: float, paid: bool) -> str:
    lost = sorted(shares.items(), key=lambda item: -item[1])
    rest = ", ".join(
        f"{kind} {share:.1%}" for kind, share in lost if kind != "train" and share >= _SHOWN_SHARE
    )
    text = f"{shares.get('train', 0.0):.1%} of {hours:.2f} {'paid ' if paid else ''}hours"
    return f"{text} trained; {rest}" if rest else f"{text} trained"


def _restarts(job: JobStatus) -> Iterator[tuple[str, str]]:
    if not job.restarts:
        return
    machines = sum(restart.what == "machines" for restart in job.restarts)
    yield "restarts", f"{machines} of machines, {len(job.restarts) - machines} of a host's run"
    for restart in job.restarts[-_LAST_RESTARTS:]:
        step = "" if restart.step is None else f" at step {restart.step:,}"
        yield "", f"{_time(restart.at)} {restart.what}{step}: {restart.reason}"


def _age(at: float | None, now: float) -> str:
    """Returns the age of an observation as text, or "" if it is below three minutes."""
    if at is None or now - at < 180:
        return ""
    return f", {timedelta(seconds=round(now - at))} ago"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
