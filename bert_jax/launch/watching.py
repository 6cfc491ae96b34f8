"""A supervisor at a terminal: what Ctrl-C means, and what is said at the end."""

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta

from bert_jax.errors import RunStopped, UserError
from bert_jax.files.lock import Lock, lock_at
from bert_jax.launch.job import JobFiles
from bert_jax.launch.launcher import Launcher
from bert_jax.launch.supervisor import Supervisor
from bert_jax.launch.supervisor_state import SupervisorState

Say = Callable[[str], None]
Confirm = Callable[[str], bool]


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


def watch_job(
    files: JobFiles, launcher: Launcher, *, say: Say, confirm: Confirm
) -> SupervisorState:
    """Watches a job to its end, or until Ctrl-C, on which the user is asked to confirm its end.

    Returns how it stands, without an outcome if the user left it running. Raises UserError if
    another process watches it or machines were refused for good, RunStopped if another supervisor
    took the lease.
    """
    with lease(files, say=say) as held:
        say(f"{files.directory}: watching, with a line a minute")
        supervisor = Supervisor(files, launcher, held, say=say)
        try:
            return supervisor.run()
        except KeyboardInterrupt:
            if not _wants_deletion(supervisor, confirm):
                say(left_running(files))
                return supervisor.state
        with _told_what_is_left(say):
            supervisor.stop("by Ctrl-C")
            return supervisor.run()


def left_running(files: JobFiles) -> str:
    """Returns the line that says how a job that nobody watches is watched, and ended."""
    return (
        f"nobody watches {files.directory} now: its machines are not recreated, and not deleted at "
        f"the end; `bert-jax watch {files.directory}` does both, `bert-jax stop {files.directory}` "
        "ends it"
    )


def conclude(supervised: SupervisorState, files: JobFiles, *, dollars: float) -> str:
    """Returns a line on how a job has ended. Raises RunStopped if it failed, or reached a limit."""
    if supervised.outcome in ("failed", "limit"):
        raise RunStopped(f"{files.directory.name}: {supervised.outcome}: {supervised.message}")
    last = supervised.attempts[-1].deleted if supervised.attempts else None
    # Until its machines were gone: whoever looks at a job that is over writes `seen` anew.
    spent = timedelta(seconds=round(supervised.hours(last or supervised.seen) * 3600))
    restarts = len(supervised.restarts)
    again = f", {restarts} restart{'s' if restarts > 1 else ''}" if restarts else ""
    return f"{files.directory.name}: {supervised.outcome} after {spent}{again}, ${dollars:,.2f}"


def _wants_deletion(supervisor: Supervisor, confirm: Confirm) -> bool:
    if supervisor.state.current is None:
        return True  # there is nothing to ask about
    try:
        return confirm("Delete its machines? Without that they go on, and bill.")
    except KeyboardInterrupt:
        return False


@contextlib.contextmanager
def _told_what_is_left(say: Say) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted while machines are deleted: `bert-jax jobs` shows what is left")
        raise
