"""One supervisor of a job at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from bert_jax.errors import UserError
from bert_jax.files.lock import Lock, lock_at
from bert_jax.launch.job import JobFiles


@contextlib.contextmanager
def lease(files: JobFiles, *, say: Callable[[str], None]) -> Iterator[Lock]:
    """Makes this process the job's one supervisor while the block lasts.

    Raises:
        UserError: another one is.
    """
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
