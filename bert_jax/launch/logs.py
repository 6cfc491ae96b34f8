"""What a host has printed, from anywhere."""

import time
from collections.abc import Callable, Iterator
from typing import Final

from bert_jax.errors import UserError
from bert_jax.files.read import read_bytes
from bert_jax.launch.heartbeats import read_host
from bert_jax.launch.job import JobFiles

POLL_SECONDS: Final = 10.0
_OVER: Final = ("done", "failed", "stopped")


def read_log(
    files: JobFiles,
    attempt: int,
    worker: int,
    *,
    follow: bool = False,
    pause: Callable[[], None] = lambda: time.sleep(POLL_SECONDS),
) -> Iterator[bytes]:
    """Yields what a host has printed, whole lines, as far as it has uploaded it.

    With `follow` it goes on with what is printed later, until the host's run is over; `pause` comes
    between two looks. Raises UserError if the host has printed nothing, and is not followed;
    RunStopped if the bucket does not answer.
    """
    part = shown = 0
    while True:
        # Before the log: a host uploads that first, so what is over has all of it.
        status = read_host(files.host(attempt, worker))
        over = status is not None and status.state in _OVER
        while (path := files.log(attempt, worker, part)).exists():
            # Parts are written in their order: where there is a next one, this one is whole.
            whole = files.log(attempt, worker, part + 1).exists()
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
            f"{files.log(attempt, worker)}: host {worker} of attempt {attempt} has printed nothing "
            "yet; --follow waits for it"
        )
