"""Locks that allow only one writer of a run directory or of a verb's output."""

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator

import jax
from etils import epath

from bert_jax.files.atomic import remove_unfinished
from bert_jax.files.lock import LOCK, Lock, lock_at, lock_beside, take_or_refuse
from bert_jax.files.remote import is_remote
from bert_jax.train.agree_with_first_process import from_first_process
from bert_jax.train.progress_display import warn_aloud


@contextlib.contextmanager
def hold_run(run_dir: epath.Path) -> Iterator[Callable[[], None]]:
    """Locks an existing run directory against other jobs during the block.

    The first process of a job holds the lock. After a kill, a lock on a file system is released at
    once, and a lock in a bucket after 45 seconds. Raises UserError if another process holds it.

    Yields a function that every process calls before it writes. The function raises RunStopped on
    all processes if another job has taken the lock, or the bucket does not answer. It raises
    UserError if the bucket refuses the request. If the first process is paused or cannot reach the
    bucket for 45 seconds, another job can take the lock.
    """
    with _hold(run_dir / LOCK, what=str(run_dir)) as lock:
        yield lambda: from_first_process(lock.check)


@contextlib.contextmanager
def hold_output(output: epath.PathLike) -> Iterator[Lock]:
    """Locks an output file or directory against other processes during the block.

    Removes the unfinished files of killed processes. Raises UserError if another process holds the
    lock.
    """
    with _hold(lock_beside(output), what=os.fspath(output)) as lock:
        if jax.process_index() == 0 and not is_remote(output):
            path = pathlib.Path(output)
            remove_unfinished(path.parent, of=path.name)
        yield lock


@contextlib.contextmanager
def _hold(path: epath.Path, *, what: str) -> Iterator[Lock]:
    lock = lock_at(path, say=lambda line: warn_aloud(f"{what}: {line}"))
    from_first_process(lambda: take_or_refuse(lock, path, what=what))
    try:
        yield lock
    finally:
        if jax.process_index() == 0:
            lock.give_back()
