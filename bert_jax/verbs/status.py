"""`bert-jax status`: how a job or a run is, from anywhere."""

import os
import time

from etils import epath

from bert_jax.errors import RunStopped, UserError
from bert_jax.files.read import read_text
from bert_jax.launch.credentials import require_credentials
from bert_jax.launch.job import RUN_JOB, JobFiles, find_job
from bert_jax.launch.launcher import Launcher
from bert_jax.launch.launchers import launcher_for
from bert_jax.launch.status import Status, read_run_status, read_status
from bert_jax.launch.supervisor_state import read_job


def status(target: str, *, bucket: str | None = None, now: float | None = None) -> Status:
    """Returns how a job is: its machines, its run's figures, where paid time went, dollars, ETA.

    ``status("gs://bucket/runs/base").run.step``

    Args:
        target: a run directory, a job's directory or a job's name.
        bucket: for a name; None for the environment's ``BERT_JAX_BUCKET``.
        now: seconds since 1970; None for the clock.

    Raises:
        UserError: there is no such run or job.
        RunStopped: its bucket does not answer.
    """
    at = time.time() if now is None else now
    root = epath.Path(os.path.expanduser(target))
    files = job_of(target, bucket=bucket)
    if files is None:
        return read_run_status(root, now=at)
    return read_status(files, _launcher(files), now=at)


def job_of(target: str, *, bucket: str | None) -> JobFiles | None:
    """Returns the job that a directory or name means; None of a run that was started by hand.

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


def _launcher(files: JobFiles) -> Launcher | None:
    """Returns who can be asked for the machines; None from where nobody can be."""
    try:
        return launcher_for(read_job(files).submit)
    except (UserError, RunStopped):
        return None
