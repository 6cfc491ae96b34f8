"""What one process finds out and all act upon."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from bert_jax.errors import UserError
from bert_jax.files.atomic import why_not_written
from bert_jax.parallel.channel import current_channel


def from_first_process(find_out: Callable[[], Any]) -> Any:
    """Returns what the first process finds out, plain JSON, on all processes; each must call it.

    Raises:
        UserError: what it raised there, on all processes.
    """
    if (channel := current_channel()) is None or jax.process_count() == 1:
        return find_out()
    answer: dict[str, Any] = {}
    if channel.index == 0:
        try:
            answer = {"found": find_out()}
        except UserError as error:
            answer = {"error": str(error)}
    answer = channel.exchange(answer)[0]
    if "error" in answer:
        raise UserError(answer["error"])
    return answer["found"]


def from_all_processes(value: Any) -> list[Any]:
    """Returns what each process says, plain JSON, on all of them; each must call it."""
    channel = current_channel()
    if channel is None or jax.process_count() == 1:
        return [value]
    return channel.exchange(value)


def failure_of(write: Callable[[], None]) -> str | None:
    """Writes something on all processes; each must call it.

    Returns:
        Why it failed on one of them: a full disk, a bucket that cannot be written. None if it has
        not.
    """
    reason = None
    try:
        write()
    except (OSError, UserError) as error:
        reason = why_not_written(error)
    return first_failure(from_all_processes(reason))


def first_failure(reasons: Sequence[str | None]) -> str | None:
    """Returns the first of all processes' reasons that is not None, and whose it is."""
    failed = [index for index, reason in enumerate(reasons) if reason is not None]
    if not failed:
        return None
    reason = str(reasons[failed[0]])
    if (channel := current_channel()) is None or len(reasons) == 1:
        return reason
    more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    return f"{channel.members[failed[0]]}: {reason}{more}"
