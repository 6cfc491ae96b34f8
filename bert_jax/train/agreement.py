"""What one process finds out and all act upon."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from bert_jax.errors import UserError


def from_first_process(find_out: Callable[[], Any]) -> Any:
    """Returns what the first process finds out, on all processes; each must call it.

    Args:
        find_out: called in the first process alone; returns plain JSON.

    Raises:
        UserError: what it raised there, on all processes.
    """
    if jax.process_count() == 1:
        return find_out()
    answer: dict[str, Any] = {}
    if jax.process_index() == 0:
        try:
            answer = {"found": find_out()}
        except UserError as error:
            answer = {"error": str(error)}
    raw = np.frombuffer(json.dumps(answer).encode(), np.uint8)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(raw))))
    padded = np.zeros(length, np.uint8)
    if jax.process_index() == 0:
        padded[:] = raw
    answer = json.loads(bytes(multihost_utils.broadcast_one_to_all(padded)))
    if "error" in answer:
        raise UserError(answer["error"])
    return answer["found"]
