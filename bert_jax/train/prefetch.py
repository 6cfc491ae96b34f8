"""Copies batches from this process's loader to the mesh ahead of their steps."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from bert_jax.data.rows.collate import count_tokens
from bert_jax.parallel.sharding_rules import batch_sharding
from bert_jax.task import Batch, HostBatch
from bert_jax.train.goodput import Stopwatch


class DeviceBatch(NamedTuple):
    """A batch on the devices."""

    batch: Batch
    tokens: int  # number of tokens on all processes, without padding
    waited: float  # seconds that the loop waited for the batch


_WAITS: Final[list[None]] = []  # one entry per active block of `waiting_for_input`


def is_waiting_for_input() -> bool:
    """Returns whether any thread is in a block of `waiting_for_input`."""
    return bool(_WAITS)


@contextlib.contextmanager
def waiting_for_input() -> Iterator[None]:
    """Tells the watchdog that the block opens or reads input."""
    _WAITS.append(None)
    try:
        yield
    finally:
        _WAITS.pop()


def prefetch_to_device(
    rows: Iterator[HostBatch], mesh: Mesh, *, shares: int, watch: Stopwatch | None = None
) -> Iterator[DeviceBatch]:
    """Yields batches on the devices.

    The loop requests the next batch right after it has dispatched a step, so reading and copying
    overlap with the step.

    Args:
        rows: this process's rows of each batch.
        mesh: mesh of the run.
        shares: number of host shares per batch (`HostShare.count`).
        watch: measures the waiting time; None within an evaluation.
    """
    sharding = batch_sharding(mesh)
    while True:
        started = time.perf_counter()
        with waiting_for_input() if watch is None else watch.on("input"):
            host = next(rows, None)
        waited = time.perf_counter() - started
        if host is None:
            return
        tokens = count_tokens(host) * shares
        yield DeviceBatch(to_devices(host, sharding, shares=shares), tokens, waited)


def to_devices(host: HostBatch, sharding: NamedSharding, *, shares: int) -> Any:
    """Returns the global batch from this process's rows, nested like `host`."""

    def place(array: np.ndarray) -> jax.Array:
        shape = (array.shape[0] * shares, *array.shape[1:])
        return jax.make_array_from_process_local_data(sharding, array, shape)

    return jax.tree.map(place, host)
