"""One writer at a time: of a run directory, and of what a verb writes."""

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
    """Keeps other processes from writing to a run directory while the block lasts.

    Of the processes of one job only the first holds the lock. A lock whose holder was killed is
    free at once on a file system, and after 45 seconds in a bucket. The directory exists.
    Raises UserError if another process is writing there.

    Yields what each process calls before anything is written: it makes sure that the lock is still
    ours. On all of them it raises RunStopped where another job has taken it, since the first one's
    machine stood still or could not reach the bucket for so long, and where the bucket does not
    say; UserError where that refuses.
    """
    with _hold(run_dir / LOCK, what=str(run_dir)) as lock:
        yield lambda: from_first_process(lock.check)


@contextlib.contextmanager
def hold_output(output: epath.PathLike) -> Iterator[Lock]:
    """Keeps other processes from writing the same file or directory while the block lasts.

    What those that were killed at it have left beside it is removed. Raises UserError if another
    process is writing it.
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
