"""From what a user calls a job to its directory."""

import os
from typing import Final

from etils import epath

from bert_jax.errors import UserError, did_you_mean
from bert_jax.launch.job import JOBS, JobFiles, job_directory

BUCKET: Final = "BERT_JAX_BUCKET"  # the environment variable that stands in for --bucket


def find_job(job: str, *, bucket: str | None = None, what: str = "job") -> JobFiles:
    """Returns where a job's files lie.

    ``find_job("gs://b/jobs/base")``, ``find_job("base", bucket="gs://b")``

    Args:
        job: its directory, or its name.
        bucket: for a name; None for ``$BERT_JAX_BUCKET``.
        what: was looked for, for the message.

    Raises:
        UserError: there is no such job, or its bucket is not known.
    """
    bucket = bucket or os.environ.get(BUCKET)
    if "/" in job:
        directory = epath.Path(job)
    elif bucket:
        directory = job_directory(bucket, job)
    else:
        raise UserError(
            f"{job}: the job's bucket is not known; allowed: --bucket gs://…, the environment's "
            f"{BUCKET}, or the job's directory in place of its name: gs://…/jobs/{job}"
        )
    files = JobFiles(directory)
    if not files.job.exists():
        others = _names(directory.parent)
        known = f"; there are: {', '.join(others[:20])}" if others else ""
        raise UserError(f"{directory}: no such {what}{did_you_mean(directory.name, others)}{known}")
    return files


def _names(jobs: epath.Path) -> list[str]:
    if jobs.name != JOBS:
        return []  # what lies there are no jobs
    try:
        return sorted(path.name for path in jobs.iterdir()) if jobs.exists() else []
    except OSError:
        return []
