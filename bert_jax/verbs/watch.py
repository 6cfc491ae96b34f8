"""`bert-jax watch`: a supervisor at a terminal, what Ctrl-C means to it, and its last line."""

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta

from bert_jax.errors import RunStopped, UserError, counted
from bert_jax.files.lock import Lock, lock_at
from bert_jax.launch.attempts import SupervisorState
from bert_jax.launch.job import Job, JobFiles, find_job, read_job
from bert_jax.launch.launcher import Launcher, launcher_for
from bert_jax.launch.supervisor import Supervisor

Say = Callable[[str], None]
Confirm = Callable[[str], bool]


def watch(
    job: str, *, bucket: str | None = None, confirm: Confirm | None = None, say: Say = print
) -> SupervisorState:
    """Watches a job to its end: replaces machines that were taken back, deletes all at the end.

    ``watch("gs://b/jobs/base").outcome -> "done"``

    Args:
        job: its directory, or its name.
        bucket: for a name; None for ``$BERT_JAX_BUCKET``.
        confirm: asks the user a question, on Ctrl-C; None: every answer is yes.
        say: called with each line of news.

    Returns:
        The state of the job; without an outcome if the user left it running.

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
    """Watches a job to its end, or until the user leaves it running after Ctrl-C; see `watch`."""
    with lease(files, say=say) as held:
        say(f"{files.directory}: watching, with a line a minute")
        supervisor = Supervisor(files, launcher, held, say=say)
        try:
            state = supervisor.run()
        except KeyboardInterrupt:
            try:
                question = "Delete its machines? Without that they go on, and bill."
                delete = supervisor.state.current is None or confirm(question)
            except KeyboardInterrupt:
                delete = False
            if not delete:
                say(left_running(files))
                return supervisor.state
            try:
                supervisor.stop("by Ctrl-C")
                state = supervisor.run()
            except KeyboardInterrupt:
                say("interrupted while machines are deleted: `bert-jax jobs` shows what is left")
                raise
    say(conclude(supervisor.job, state))
    return state


@contextlib.contextmanager
def lease(files: JobFiles, *, say: Say) -> Iterator[Lock]:
    """Makes this process the job's one supervisor in the block; raises UserError if another is."""
    lock = lock_at(files.lease, say=say)
    if not lock.take():
        raise UserError(
            f"{files.directory}: is watched by another process (host and process "
            f"{lock.holder or 'unknown'}); allowed: one at a time"
        )
    try:
        yield lock
    finally:
        lock.give_back()


def left_running(files: JobFiles) -> str:
    """Returns a line on how to watch or end a job that nobody watches."""
    return (
        f"nobody watches {files.directory} now: its machines are not recreated, and not deleted at "
        f"the end; `bert-jax watch {files.directory}` does both, `bert-jax stop {files.directory}` "
        "ends it"
    )


def conclude(job: Job, state: SupervisorState) -> str:
    """Returns a line on how a job has ended. Raises RunStopped if it failed, or reached a limit."""
    if state.outcome in ("failed", "limit"):
        raise RunStopped(f"{job.name}: {state.outcome}: {state.message}")
    # Until machines were gone: `seen` is newer if somebody looked at the job later.
    last = state.attempts[-1].deleted if state.attempts else None
    spent = timedelta(seconds=round(state.hours(last or state.seen) * 3600))
    again = f", {counted(len(state.restarts), 'restart')}" if state.restarts else ""
    dollars = state.dollars(job.placements, state.seen)
    return f"{job.name}: {state.outcome} after {spent}{again}, ${dollars:,.2f}"
