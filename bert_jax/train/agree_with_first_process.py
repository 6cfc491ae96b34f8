"""Shares results and failures of one process with all processes."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from bert_jax.errors import RunStopped, UserError, error_from_json, error_to_json
from bert_jax.files.atomic import refusal_of
from bert_jax.parallel.channel import current_channel


def from_first_process(find_out: Callable[[], Any]) -> Any:
    """Calls `find_out` on the first process; returns its result, plain JSON, on all processes.

    Every process must call it. If the first process raises UserError or RunStopped, all processes
    raise the same error.
    """
    if (channel := current_channel()) is None or jax.process_count() == 1:
        return find_out()
    answer: dict[str, Any] = {}
    if channel.index == 0:
        try:
            answer = {"found": find_out()}
        except (UserError, RunStopped) as error:
            answer = {"error": error_to_json(error)}
    answer = channel.exchange(answer)[0]
    if "error" in answer:
        raise error_from_json(answer["error"])
    return answer["found"]


def failure_of(write: Callable[[], None]) -> str | None:
    """Calls `write` on all processes; returns the reason of the first failed process, or None.

    Every process must call it.
    """
    reason, channel = refusal_of(write), current_channel()
    if channel is None or jax.process_count() == 1:
        return reason
    return first_failure(channel.exchange(reason))


def first_failure(reasons: Sequence[str | None]) -> str | None:
    """Returns the first failed process and its reason, or None if no process failed."""
    failed = [index for index, reason in enumerate(reasons) if reason is not None]
    if not failed:
        return None
    reason = str(reasons[failed[0]])
    if (channel := current_channel()) is None or len(reasons) == 1:
        return reason
    more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    return f"{channel.members[failed[0]]}: {reason}{more}"
