"""The forward program of a corpus: host arrays of token ids → logits or vectors."""

import collections
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bert_jax.inference.execution import stacked_again
from bert_jax.parallel.compiling import made_once
from bert_jax.parallel.sharding_rules import batch_sharding
from bert_jax.task import Batch, Row
from bert_jax.train.prefetch import to_devices

INPUT_IDS, LENGTHS, SECONDS = "input_ids", "lengths", "seconds"


class Forward(Protocol):
    """A model that computes batches in the background, first in first out."""

    def submit(self, batch: Row) -> None:
        """Starts the computation of a batch. See `device_batch` for its arrays."""
        ...

    def collect(self) -> np.ndarray:
        """Waits for the outputs of the oldest batch that was not collected, [rows, ...]."""
        ...


def device_batch(arrays: Batch) -> Batch:
    """Returns the model's inputs. Runs on the device, so that the host sends only the tokens.

    Args:
        arrays: ``input_ids`` [B, L] in any integer type, ``lengths`` [B], the number of tokens, and
            optionally ``seconds`` [B], the index of the first token of a second text.

    Returns:
        ``input_ids``, ``token_type_ids`` and ``segment_ids``, int32 [B, L], as `collate_tokens`.
    """
    ids, lengths = arrays[INPUT_IDS].astype(jnp.int32), arrays[LENGTHS][:, None]
    at = jnp.arange(ids.shape[1])[None]
    inside = at < lengths
    second = arrays[SECONDS][:, None] if SECONDS in arrays else lengths
    return {
        "input_ids": ids,
        "token_type_ids": (inside & (at >= second)).astype(jnp.int32),
        "segment_ids": inside.astype(jnp.int32),
    }


class IdleClock:
    """Measures the time in which the devices of this process wait for batches.

    Attributes:
        waited: seconds between the end of a batch and the submission of the next.
    """

    def __init__(self) -> None:
        self.waited = 0.0
        self._ready = 0.0  # time at which the last computed batch was ready
        self._started: queue.SimpleQueue[tuple[float, jax.Array]] = queue.SimpleQueue()
        threading.Thread(target=self._watch, daemon=True, name="idle clock").start()

    def started(self, outputs: jax.Array) -> None:
        """Notes the submission of a batch. Batches are computed in order."""
        self._started.put((time.monotonic(), outputs))

    def _watch(self) -> None:
        while True:
            submitted, outputs = self._started.get()
            if self._ready and submitted > self._ready:
                self.waited += submitted - self._ready
            with contextlib.suppress(Exception):  # `collect` raises it
                outputs.block_until_ready()
            self._ready = time.monotonic()


class Program:
    """A compiled forward function with its parameters on the devices of this process.

    Each batch shape is compiled at its first batch.

    Attributes:
        clock: the time in which the devices waited.
    """

    def __init__(
        self, forward: Callable[[Any, Batch], Any], params: Any, mesh: Mesh, *, clock: IdleClock
    ) -> None:
        """`forward` is a function of (parameters, batch) that is `made_once`.

        `params` are stacked, or the result of `by_layer`.
        """
        self._params, self._mesh, self.clock = params, mesh, clock
        self._forward = jit_forward(forward, mesh)
        self._sharding = batch_sharding(mesh)
        self._pending: collections.deque[jax.Array] = collections.deque()

    def submit(self, batch: Row) -> None:
        """Starts the computation of a batch."""
        with jax.set_mesh(self._mesh):
            placed = to_devices(batch, self._sharding, shares=1)
            outputs = self._forward(self._params, placed)
        self.clock.started(outputs)
        self._pending.append(outputs)

    def collect(self) -> np.ndarray:
        """Returns the outputs of the oldest batch that was not collected."""
        return jax.device_get(self._pending.popleft())


@made_once
def jit_forward(forward: Callable[[Any, Batch], Any], mesh: Mesh) -> jax.stages.Wrapped:
    """Returns the compiled form of a forward function. No output crosses devices."""

    def run(params: Any, arrays: Batch) -> Any:
        batch = arrays if "segment_ids" in arrays else device_batch(arrays)
        return forward(stacked_again(params), batch)

    return jax.jit(run, out_shardings=batch_sharding(mesh))
