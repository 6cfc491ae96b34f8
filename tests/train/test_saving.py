"""How checkpoints are written: arrays that several devices hold, saves that others wait for."""

import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from etils import epath
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax.train import checkpoint_orbax
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.manifest import write_manifest
from bert_jax.train.sections import CheckpointSection
from tests.train.checkpoints import state_at

COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def params() -> dict[str, jax.Array]:
    """Two small arrays of shapes that no other test has, each on every device."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    return {
        "bias": jax.device_put(np.arange(8 * 37, dtype=np.float32), everywhere),
        "kernel": jax.device_put(np.ones((8, 41), np.float32), everywhere),
    }


def abstract(params: dict[str, jax.Array]) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes, dtypes and shardings."""
    return {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
        for name, leaf in params.items()
    }


@pytest.mark.parametrize(
    ("smallest", "programs"), [(checkpoint_orbax.MIN_SLICE_BYTES, 0), (16, 16)]
)
def test_small_arrays_are_saved_whole_and_large_ones_in_parts(
    params: dict[str, jax.Array],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    smallest: int,
    programs: int,
) -> None:
    monkeypatch.setattr(checkpoint_orbax, "MIN_SLICE_BYTES", smallest)
    compiled: list[str] = []

    def count(event: str, *_: object, **__: object) -> None:
        if event == COMPILED:
            compiled.append(event)

    with Checkpointer(tmp_path, CheckpointSection()) as checkpoints:
        jax.monitoring.register_event_duration_secs_listener(count)
        try:
            checkpoints.save_params(params, step=1)
            checkpoints.wait()
        finally:
            jax.monitoring.unregister_event_duration_listener(count)
        restored = checkpoints.restore_params(abstract(params), step=1)
    assert len(compiled) == programs
    jax.tree.map(np.testing.assert_array_equal, restored, params)


def test_a_save_that_two_threads_wait_for_ends_before_the_next_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a signal's thread waits for a slow bucket, and the train loop comes to its next."""
    slow, other_waits = threading.Event(), threading.Event()

    def write_late(directory: epath.Path, **named: Any) -> None:
        assert slow.wait(60)
        write_manifest(directory, **named)

    monkeypatch.setattr(checkpoint_orbax, "write_manifest", write_late)
    with Checkpointer(tmp_path, CheckpointSection()) as checkpoints:
        checkpoints.save(state_at(4), step=4, progress={"step": 4})

        def wait() -> None:
            other_waits.set()
            checkpoints.wait()

        other = threading.Thread(target=wait)
        other.start()
        assert other_waits.wait(60)
        other.join(0.2)  # it is in `wait` by then
        threading.Timer(0.5, slow.set).start()
        checkpoints.save(state_at(8), step=8, progress={"step": 8})
        other.join()
    with Checkpointer(tmp_path, CheckpointSection(), read_only=True) as checkpoints:
        assert [checkpoints.on_disk.problem(step) for step in (4, 8)] == [None, None]
