"""One writer at a time: of a run directory, and of a verb's output."""

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator

import jax
from etils import epath

from bert_jax.files.atomic import remove_unfinished
from bert_jax.files.lock import LOCK, Lock, lock_at, lock_beside, take_or_refuse
from bert_jax.files.remote import is_remote
from bert_jax.train.agreement import from_first_process
from bert_jax.train.progress_display import warn_aloud


@contextlib.contextmanager
def hold_run(run_dir: epath.Path) -> Iterator[Callable[[], None]]:
    """Keeps other processes from writing to a run directory, which exists, during the block.

    The first process of a job holds the lock. If the holder is killed, the lock is free at once on
    a file system, and after 45 seconds in a bucket. Raises UserError: another process writes there.

    Yields a function that every process calls before it writes. On all processes it raises
    RunStopped: another job has taken the lock, after the first process stood still or could not
    reach the bucket for so long, or the bucket does not answer; UserError: the bucket refuses.
    """
    with _hold(run_dir / LOCK, what=str(run_dir)) as lock:
        yield lambda: from_first_process(lock.check)


@contextlib.contextmanager
def hold_output(output: epath.PathLike) -> Iterator[Lock]:
    """Keeps other processes from writing the same file or directory during the block.

    Removes the unfinished files of killed processes. Raises UserError: another process writes it.
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
