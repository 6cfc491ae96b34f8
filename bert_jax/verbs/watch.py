"""`bert-jax watch`: runs a supervisor at a terminal, and handles Ctrl-C."""

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta

from etils import epath

from bert_jax.errors import RunStopped, UserError, counted
from bert_jax.files.lock import Lock, lock_at
from bert_jax.launch.job import Job, JobFiles, find_job, read_job
from bert_jax.launch.launcher import Launcher
from bert_jax.launch.launchers import launcher_for
from bert_jax.launch.retry_policy import SupervisorState
from bert_jax.launch.supervisor import Supervisor
from bert_jax.runs.settings import REPORT

Say = Callable[[str], None]
Confirm = Callable[[str], bool]


def watch(
    job: str, *, bucket: str | None = None, confirm: Confirm | None = None, say: Say = print
) -> SupervisorState:
    """Watches a job to its end: replaces preempted machines, then deletes all machines.

    ``watch("gs://b/jobs/base").outcome -> "done"``

    Args:
        job: the job's directory or name.
        bucket: bucket of a job given by name. Default: ``$BERT_JAX_BUCKET``.
        confirm: callback that asks the user on Ctrl-C. Default: do not ask.
        say: callback for output lines.

    Returns:
        The state of the job. Its outcome is None if the user left the job running.

    Raises:
        UserError: there is no such job, or another process watches it.
        RunStopped: the run failed, or a limit was reached; no machines are left.
    """
    say(f"{job}: reading the state of the job")
    files = find_job(job, bucket=bucket)
    launcher = launcher_for(read_job(files).submit)
    return watch_job(files, launcher, say=say, confirm=confirm or (lambda question: True))


def watch_job(
    files: JobFiles, launcher: Launcher, *, say: Say, confirm: Confirm
) -> SupervisorState:
    """Watches a job until it ends, or the user leaves it running after Ctrl-C. See `watch`."""
    with lease(files, say=say) as held:
        say(f"{files.directory}: watching; prints a line every minute")
        supervisor = Supervisor(files, launcher, held, say=say)
        try:
            state = supervisor.run()
        except KeyboardInterrupt:
            try:
                question = "Delete its machines? Otherwise they keep running and billing."
                delete = supervisor.state.current is None or confirm(question)
            except KeyboardInterrupt:
                delete = False
            if not delete:
                say(unwatched_line(files))
                return supervisor.state
            try:
                supervisor.stop("by Ctrl-C")
                state = supervisor.run()
            except KeyboardInterrupt:
                say("interrupted while deleting machines: `bert-jax jobs` lists the rest")
                raise
    say(outcome_line(supervisor.job, state))
    return state


@contextlib.contextmanager
def lease(files: JobFiles, *, say: Say) -> Iterator[Lock]:
    """Holds the job's lease in the block. Raises UserError if another supervisor holds it."""
    lock = lock_at(files.lease, say=say)
    if not lock.take():
        raise UserError(
            "job.watched",
            f"another process ({lock.holder or 'unknown'}) watches this job",
            place=files.directory,
        )
    try:
        yield lock
    finally:
        lock.give_back()


def unwatched_line(files: JobFiles) -> str:
    """Returns a line on how to watch or end a job without a supervisor."""
    return (
        f"{files.directory} is not watched now: lost machines are not replaced, and machines are "
        f"not deleted at the end. `bert-jax watch {files.directory}` does both; `bert-jax stop "
        f"{files.directory}` ends the job."
    )


def outcome_line(job: Job, state: SupervisorState) -> str:
    """Returns a line on a job's outcome. Raises RunStopped if it failed or reached a limit."""
    if state.outcome in ("failed", "limit"):
        raise RunStopped("job.failed", f"{state.outcome}: {state.message}", place=job.name)
    # Time to the deletion of the last machines: a later command may have updated `seen`.
    last = state.attempts[-1].deleted if state.attempts else None
    spent = timedelta(seconds=round(state.hours(last or state.seen) * 3600))
    again = f", {counted(len(state.restarts), 'restart')}" if state.restarts else ""
    dollars = state.dollars(job.placements, state.seen)
    is_whole = state.outcome == "done" and job.verb in ("pretrain", "finetune")
    report = f", report: {epath.Path(job.run_dir) / REPORT}" if is_whole else ""
    return f"{job.name}: {state.outcome} after {spent}{again}, ${dollars:,.2f}{report}"
