"""Reads what hosts say of themselves."""

from __future__ import annotations

from collections.abc import Sequence

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.read import read_json_object
from bert_jax.files.remote import each
from bert_jax.launch.job import HostStatus, JobFiles
from bert_jax.validation import validate


def read_host(path: epath.Path) -> HostStatus | None:
    """Returns the status of one host; None if it has said nothing yet, or nothing that is whole."""
    try:
        return validate(HostStatus, read_json_object(path), source=str(path))
    except UserError:
        return None


def read_hosts(files: JobFiles, attempt: int, *, count: int) -> Sequence[HostStatus | None]:
    """Returns what every host of an attempt last said of itself, in their order.

    Args:
        files: of the job.
        attempt: its number.
        count: of hosts.
    """
    return list(each(read_host, [files.host(attempt, worker) for worker in range(count)]))
