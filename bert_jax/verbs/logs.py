"""`bert-jax logs`: what a host of a job has printed, from anywhere."""

from collections.abc import Iterator

from bert_jax.errors import UserError
from bert_jax.launch.logs import read_log
from bert_jax.launch.supervisor_state import read_state
from bert_jax.verbs.status import job_of


def logs(
    target: str,
    *,
    worker: int = 0,
    attempt: int | None = None,
    follow: bool = False,
    bucket: str | None = None,
) -> Iterator[bytes]:
    """Yields what a host has printed, as far as it has uploaded it, at most a minute ago.

    Args:
        target: a run directory, a job's directory or a job's name.
        worker: the host, from 0.
        attempt: whose host; None for the last one.
        follow: go on with what is printed later, until the host's run is over.
        bucket: for a name; None for the environment's ``BERT_JAX_BUCKET``.

    Raises:
        UserError: there is no such job, or the host has printed nothing and is not followed.
        RunStopped: the bucket does not answer.
    """
    files = job_of(target, bucket=bucket)
    if files is None:
        raise UserError(f"{target}: was not submitted; it printed where it was started")
    attempts = read_state(files).attempts
    last = attempts[-1].number if attempts else 1
    return read_log(files, attempt or last, worker, follow=follow)
