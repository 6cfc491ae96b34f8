"""Findings of one process that all processes act upon."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from bert_jax.errors import RunStopped, UserError
from bert_jax.files.atomic import refusal_of
from bert_jax.parallel.channel import current_channel
from bert_jax.parallel.error_json import error_from_json, error_to_json


def from_first_process(find_out: Callable[[], Any]) -> Any:
    """Returns the first process's result, plain JSON, on all processes; each must call it.

    Raises UserError, RunStopped: the first process raised it; all processes raise it too.
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
    """Writes on all processes; returns why one of them failed, or None. Each must call it."""
    reason, channel = refusal_of(write), current_channel()
    if channel is None or jax.process_count() == 1:
        return reason
    return first_failure(channel.exchange(reason))


def first_failure(reasons: Sequence[str | None]) -> str | None:
    """Returns the first reason that is not None, with the process that gave it."""
    failed = [index for index, reason in enumerate(reasons) if reason is not None]
    if not failed:
        return None
    reason = str(reasons[failed[0]])
    if (channel := current_channel()) is None or len(reasons) == 1:
        return reason
    more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    return f"{channel.members[failed[0]]}: {reason}{more}"
