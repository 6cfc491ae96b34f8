"""`bert-jax jobs`: lists existing machines with their cost, and deletes orphans."""

import dataclasses
import os
import time
from collections.abc import Iterable, Sequence
from typing import Final

from etils import epath

from bert_jax.errors import RunStopped, UserError
from bert_jax.launch.gcloud import with_gcloud_settings
from bert_jax.launch.heartbeat_reader import read_hosts
from bert_jax.launch.job import BUCKET, Job, JobFiles, job_directory, read_job
from bert_jax.launch.launcher import Existing, Launcher, State
from bert_jax.launch.launchers import known_launchers
from bert_jax.launch.retry_policy import (
    AttemptRecord,
    SupervisorLimits,
    SupervisorState,
    read_state,
)
from bert_jax.launch.section import SubmitSection
from bert_jax.verbs.watch import Confirm, Say

_UNWATCHED_SECONDS: Final = 900.0


@dataclasses.dataclass(frozen=True)
class Machines:
    """Existing machines, and whether a job needs them."""

    existing: Existing
    launcher: Launcher  # launcher that can delete the machines
    orphan: str = ""  # reason why the machines are not needed; empty if they may be needed
    note: str = ""  # whether a supervisor watches them, or why that is unknown


def jobs(
    section: SubmitSection | None = None,
    *,
    stop_orphans: bool = False,
    confirm: Confirm | None = None,
    say: Say = print,
) -> list[Machines]:
    """Returns the machines of all jobs, except those that it deletes.

    ``[found.existing.resource for found in jobs()] -> ["base-2"]``

    Args:
        section: project, zones, cluster and bucket. Default: from the environment.
        stop_orphans: delete machines without a supervisor if their job or run has ended, they were
            preempted or replaced, or their hosts are silent.
        confirm: callback that asks the user before each deletion. Default: do not ask.
        say: callback for output lines.

    Raises:
        UserError, RunStopped: a deletion fails.
    """
    section = with_gcloud_settings(section or SubmitSection())
    bucket = section.bucket or os.environ.get(BUCKET)
    found = find_existing(known_launchers(section, say=say), bucket=bucket, say=say)
    left = []
    for entry in found:
        what = f"{entry.existing.resource} ({entry.orphan})"
        wanted = stop_orphans and entry.orphan and (confirm is None or confirm(f"Delete {what}?"))
        if wanted:
            entry.launcher.remove(entry.existing)
            say(f"{entry.existing.resource}: deleted ({entry.orphan})")
        else:
            left.append(entry)
    return left


def describe_jobs(found: Sequence[Machines]) -> list[str]:
    """Returns a line for each entry. Machines that cost money come first."""
    if not found:
        return ["no machines"]
    lines = []
    for entry in sorted(found, key=lambda entry: not entry.existing.bills):
        existing = entry.existing
        bills = "bills" if existing.bills else "free"
        what = f"orphan: {entry.orphan}" if entry.orphan else entry.note
        where = f", {existing.owner.directory}" if existing.owner.directory else ""
        is_at = f"{existing.resource} in {existing.zone}: {existing.state.value}"
        lines.append(f"{is_at}, {bills}, {what}{where}")
    return lines


def find_existing(launchers: Iterable[Launcher], *, bucket: str | None, say: Say) -> list[Machines]:
    """Returns all existing machines; calls `say` for each launcher that does not answer.

    `bucket`: bucket of jobs whose machines have no directory in their metadata.
    """
    found = []
    for launcher in launchers:
        try:
            found += [_judge(existing, launcher, bucket) for existing in launcher.existing()]
        except (UserError, RunStopped) as error:
            say(f"{type(launcher).__name__}: not listed: {error}")
    return found


def _judge(existing: Existing, launcher: Launcher, bucket: str | None) -> Machines:
    job, directory = existing.owner
    if not directory and not bucket:
        return Machines(existing, launcher, note="bucket unknown; give --bucket")
    files = JobFiles(epath.Path(directory) if directory else job_directory(bucket or "", job))
    try:
        job, state = read_job(files), read_state(files)
    except (UserError, RunStopped, OSError) as error:
        return Machines(existing, launcher, note=f"its job is unreadable: {error}")
    mine = [record for record in state.attempts if record.of(job).resource == existing.resource]
    if not mine:
        return Machines(existing, launcher, note="not an attempt of its job")
    if time.time() - state.seen < max(_UNWATCHED_SECONDS, 3 * job.submit.poll_seconds):
        return Machines(existing, launcher, note="watched")
    note = "not watched"
    try:
        return Machines(existing, launcher, _orphan(files, job, state, mine[0], existing), note)
    except (UserError, RunStopped, OSError) as error:
        note = f"{note}, its hosts' reports are unreadable: {error}"
        return Machines(existing, launcher, note=note)


def _orphan(
    files: JobFiles, job: Job, state: SupervisorState, record: AttemptRecord, existing: Existing
) -> str:
    """Returns why machines without a supervisor are not needed, or "" if they may be needed."""
    if state.outcome is not None:
        return f"its job has ended: {state.outcome}"
    if record.number != state.attempts[-1].number:
        return f"attempt {state.attempts[-1].number} has replaced it"
    if existing.state in (State.SUSPENDED, State.FAILED):
        return f"it is {existing.state.value}"
    if existing.state is not State.ACTIVE:
        return ""
    hosts = read_hosts(files, record.of(job))
    if hosts.done or hosts.failed is not None:
        return f"its run {'is done' if hosts.done else 'has failed'}"
    now = time.time()
    if not hosts.reports:  # machines may be new, unless a supervisor saw them long ago
        up = now - (record.up_from or now)
        return f"not started within {up / 60:.0f} min" if up > SupervisorLimits.start else ""
    silent = now - max(host.at for host in hosts.reports.values())
    return f"silent for {silent / 60:.0f} min" if silent > _UNWATCHED_SECONDS else ""
