"""Writing checkpoints, and the choice of checkpoints to keep."""

import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from etils import epath
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax.errors import RunStopped
from bert_jax.train import checkpoint_orbax
from bert_jax.train.checkpoint_manifest import SelectionScore, write_manifest
from bert_jax.train.checkpoint_retention import CheckpointDirectory
from bert_jax.train.checkpointer import Checkpointer
from bert_jax.train.sections import CheckpointSection
from tests.project import refuses
from tests.train.checkpoints import save_steps, state_at

COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def params() -> dict[str, jax.Array]:
    """Two small replicated arrays; no other test compiles for their shapes."""
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


def test_concurrent_waits_finish_a_save_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal handler's thread waits for a slow bucket while the train loop saves again."""
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
        other.join(0.2)  # give it time to enter `wait`
        threading.Timer(0.5, slow.set).start()
        checkpoints.save(state_at(8), step=8, progress={"step": 8})
        other.join()
    with Checkpointer(tmp_path, CheckpointSection(), read_only=True) as checkpoints:
        assert [checkpoints.on_disk.problem(step) for step in (4, 8)] == [None, None]


def kept(directory: Path) -> list[int]:
    return sorted(int(path.name) for path in directory.iterdir())


def save(
    directory: Path, scores: dict[int, SelectionScore | None], section: CheckpointSection
) -> int | None:
    """Saves one state for each score; returns the step of the best checkpoint."""
    with Checkpointer(directory, section) as checkpoints:
        for step, score in scores.items():
            checkpoints.save(state_at(step), step=step, progress={}, selection_score=score)
        return checkpoints.on_disk.best()


def test_newest_periodic_and_best_checkpoints_are_kept(tmp_path: Path) -> None:
    section = CheckpointSection(keep_last=2, keep_every=10, keep_best=1)
    values = {5: 3.0, 10: 2.5, 15: 1.0, 20: 1.5, 25: 2.0, 30: 2.0, 35: 1.25}
    scores = {step: SelectionScore(value, "dev") for step, value in values.items()}
    assert save(tmp_path, scores, section) == 15
    assert kept(tmp_path) == [10, 15, 20, 30, 35]


def test_the_best_is_per_phase_and_validation_set(tmp_path: Path) -> None:
    section = CheckpointSection(keep_last=1, keep_best=1)
    short = {step: SelectionScore(step / 10, "phase 0") for step in (2, 4)}
    longer = {6: SelectionScore(9.0, "phase 1"), 8: SelectionScore(9.5, "phase 1")}
    assert save(tmp_path, short, section) == 2
    assert save(tmp_path, longer, section) == 6
    assert kept(tmp_path) == [6, 8]


def test_the_newer_of_equal_scores_is_the_best(tmp_path: Path) -> None:
    scores = {step: SelectionScore(1.0, "dev") for step in (1, 2, 3)}
    assert save(tmp_path, scores, CheckpointSection()) == 3


def test_a_damaged_best_is_skipped_with_a_warning(tmp_path: Path) -> None:
    save_steps(tmp_path)  # with rising scores
    (tmp_path / "12" / "params" / "_METADATA").write_text("{}")
    said: list[str] = []
    found = CheckpointDirectory(epath.Path(tmp_path), say=said.append)
    assert found.best() == 8
    assert "checkpoint 12: params/_METADATA" in said[0]


def test_deletion_keeps_the_only_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = CheckpointSection(keep_last=1, keep_best=0)
    save_steps(tmp_path, (4,), section=section)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bert_jax.train.checkpoint_orbax.write_manifest", full)
    said: list[str] = []
    warn = section.model_copy(update={"on_error": "warn"})
    with (
        refuses("checkpoint.not_saved", kind=RunStopped, step=8, last=4),
        Checkpointer(tmp_path, warn, say=said.append) as checkpoints,
    ):
        checkpoints.save(state_at(8), step=8, progress={})
    assert "NOT SAVED" in said[0]
    assert kept(tmp_path) == [4]
