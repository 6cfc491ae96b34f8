"""What exists for jobs, and which of it nobody needs."""

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Final

from etils import epath

from bert_jax.errors import RunStopped, UserError
from bert_jax.launch.heartbeats import read_hosts
from bert_jax.launch.job import Job, JobFiles, job_directory
from bert_jax.launch.launcher import Existing, Launcher, State
from bert_jax.launch.supervisor_state import AttemptRecord, SupervisorState, read_job, read_state
from bert_jax.launch.verdict import WatchPace

_UNWATCHED_SECONDS: Final = 900.0


@dataclasses.dataclass(frozen=True)
class Found:
    """Something that exists."""

    existing: Existing  # as its launcher shows it
    launcher: Launcher  # that deletes it
    orphan: str  # why nobody needs it; empty if somebody does, or that is not known
    note: str  # what else is known of it


def find_existing(
    launchers: Iterable[Launcher], *, bucket: str | None, say: Callable[[str], None]
) -> list[Found]:
    """Returns everything that exists; `say` gets a line on each launcher that cannot be asked.

    The bucket is that of jobs whose machines do not say where they lie.
    """
    found = []
    for launcher in launchers:
        try:
            found += [_judge(existing, launcher, bucket) for existing in launcher.existing()]
        except (UserError, RunStopped) as error:
            say(f"{type(launcher).__name__}: not listed: {error}")
    return found


def _judge(existing: Existing, launcher: Launcher, bucket: str | None) -> Found:
    directory = existing.directory or (str(job_directory(bucket, existing.job)) if bucket else "")
    if not directory:
        return Found(existing, launcher, "", "its bucket is not known: --bucket")
    files = JobFiles(epath.Path(directory))
    try:
        job, state = read_job(files), read_state(files)
    except (UserError, RunStopped, OSError) as error:
        return Found(existing, launcher, "", f"its job cannot be read: {error}")
    mine = [each for each in state.attempts if each.of(job).resource == existing.resource]
    if not mine:
        return Found(existing, launcher, "", "no attempt of its job has this name")
    watched = time.time() - state.seen < max(_UNWATCHED_SECONDS, 3 * job.submit.poll_seconds)
    note = "watched" if watched else "nobody watches it"
    try:
        orphan = "" if watched else _orphan(files, job, state, mine[0], existing)
    except (UserError, RunStopped, OSError) as error:
        return Found(existing, launcher, "", f"{note}, what its hosts say cannot be read: {error}")
    return Found(existing, launcher, orphan, note)


def _orphan(
    files: JobFiles, job: Job, state: SupervisorState, record: AttemptRecord, existing: Existing
) -> str:
    """Returns why machines that nobody watches are not needed."""
    if state.outcome is not None:
        return f"its job is over: {state.outcome}"
    if record.number != state.attempts[-1].number:
        return f"attempt {state.attempts[-1].number} has followed it"
    if existing.state in (State.SUSPENDED, State.FAILED):
        return f"it is {existing.state.value}"
    if existing.state is not State.ACTIVE:
        return ""
    hosts = read_hosts(files, record.of(job))
    if hosts.done or hosts.failed is not None:
        return f"its run is {'done' if hosts.done else 'at its end: failed'}"
    now = time.time()
    if not hosts.told:  # their machines may have come a minute ago, unless somebody has seen them
        up = now - (record.up_from or now)
        return f"not started within {up / 60:.0f} min" if up > WatchPace.start else ""
    silent = now - max(host.at for host in hosts.told.values())
    return f"silent for {silent / 60:.0f} min" if silent > _UNWATCHED_SECONDS else ""
