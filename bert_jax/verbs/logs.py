"""`bert-jax logs`: the output of a job's host, from any machine."""

import time
from collections.abc import Callable, Iterator
from typing import Final

import pydantic

from bert_jax.errors import UserError
from bert_jax.files.read import read_bytes
from bert_jax.launch.heartbeat_reader import read_host
from bert_jax.launch.job import JobFiles
from bert_jax.launch.retry_policy import read_state
from bert_jax.verbs.status import job_of

POLL_SECONDS: Final = 10.0
_OVER: Final = ("done", "failed", "stopped")


def logs(
    target: str,
    *,
    worker: pydantic.NonNegativeInt = 0,
    attempt: pydantic.PositiveInt | None = None,
    follow: bool = False,
    bucket: str | None = None,
) -> Iterator[bytes]:
    """Yields the uploaded output of a host, at most a minute late.

    Args:
        target: a run directory, a job's directory or a job's name.
        worker: index of the host, from 0.
        attempt: number of the attempt. Default: the last attempt.
        follow: wait for later output until the host's run has ended.
        bucket: bucket of a job given by name. Default: ``$BERT_JAX_BUCKET``.

    Raises:
        UserError: the job does not exist, or has no output yet and `follow` is false.
        RunStopped: the bucket does not answer.
    """
    files = job_of(target, bucket=bucket)
    if files is None:
        raise UserError(
            "job.not_submitted",
            "started without `bert-jax submit`, so its output was not uploaded",
            place=target,
        )
    attempts = read_state(files).attempts
    last = attempts[-1].number if attempts else 1
    return read_log(files, attempt or last, worker, follow=follow)


def read_log(
    files: JobFiles,
    attempt: int,
    worker: int,
    *,
    follow: bool = False,
    pause: Callable[[], None] = lambda: time.sleep(POLL_SECONDS),
) -> Iterator[bytes]:
    """Yields the output of a host in whole lines. `follow` calls `pause` between two polls."""
    part = shown = 0
    while True:
        # Read the status first. A host uploads it after the log: if the status says that the run
        # has ended, the log is complete.
        status = read_host(files.host(attempt, worker))
        over = status is not None and status.state in _OVER
        while (path := files.log(attempt, worker, part)).exists():
            whole = files.log(attempt, worker, part + 1).exists()  # parts are written in order
            if new := read_bytes(path)[shown:]:
                yield new
            part, shown = (part + 1, 0) if whole else (part, shown + len(new))
            if not whole:
                break
        if not follow or over:
            break
        pause()
    if not part and not shown and not follow:
        raise UserError(
            "job.no_output",
            f"host {worker} of attempt {attempt} has no output yet. Use --follow to wait for it.",
            place=files.log(attempt, worker),
        )
