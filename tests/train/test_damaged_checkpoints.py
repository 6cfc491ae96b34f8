"""A restore detects damage to any file of a checkpoint, names the file and skips the checkpoint."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.files.seal import sealed, unsealed
from bert_jax.train.checkpoint_manifest import MANIFEST
from bert_jax.train.checkpointer import Checkpointer
from bert_jax.train.sections import CheckpointSection
from tests.project import refuses
from tests.train.checkpoints import STEPS, abstract, save_steps, state_at

pytestmark = pytest.mark.slow

Damager = Callable[[Path, random.Random], None]

OLDER, NEWEST = STEPS[-2:]
SECTION = CheckpointSection()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_steps(tmp_path_factory.mktemp("pristine") / "checkpoints")


@pytest.fixture
def copy(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "checkpoints"))


def restored_step(directory: Path, *, compare: bool = True) -> tuple[int, list[str]]:
    """Returns the step that a resumed run would restore, and warnings; checks the state."""
    said: list[str] = []
    with Checkpointer(directory, SECTION, read_only=True, say=said.append) as checkpoints:
        step = checkpoints.on_disk.newest()
        assert step is not None
        if compare:
            state = checkpoints.restore_state(abstract(), step=step)
            assert checkpoints.progress(step) == {"step": step}
            jax.tree.map(np.testing.assert_array_equal, state, state_at(step))
    return step, said


def flip(file: Path, rng: random.Random) -> None:
    raw = bytearray(file.read_bytes())
    raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    file.write_bytes(raw)


def truncate(file: Path, rng: random.Random) -> None:
    file.write_bytes(file.read_bytes()[: rng.randrange(file.stat().st_size)])


def delete(file: Path, rng: random.Random) -> None:
    file.unlink()


def append(file: Path, rng: random.Random) -> None:
    file.write_bytes(file.read_bytes() + b"\0")


def swap(file: Path, rng: random.Random) -> None:
    """Overwrites the file with another file's content, of the same size if possible."""
    step = next(parent for parent in file.parents if parent.name == str(NEWEST))
    others = [
        other
        for other in step.parent.rglob("*")
        if other.is_file() and other.read_bytes() != file.read_bytes()
    ]
    file.write_bytes(
        min(others, key=lambda o: (abs(o.stat().st_size - file.stat().st_size), o)).read_bytes()
    )


def test_damage_to_any_file_is_named_and_not_restored(pristine: Path, tmp_path: Path) -> None:
    rng = random.Random(13)
    files = sorted(p.relative_to(pristine) for p in (pristine / str(NEWEST)).rglob("*"))
    files = [name for name in files if (pristine / name).is_file()]
    kinds: list[Damager] = [flip, flip, truncate, delete, append, swap]
    count = 0
    for name in files:
        if name.parts[1:] == ("commit_success.txt",):
            continue  # Orbax's marker file; we do not read its content
        for damage in kinds:
            work = tmp_path / str(count)
            shutil.copytree(pristine, work)
            damage(work / name, rng)
            step, said = restored_step(work, compare=count % 12 == 0)
            assert step == OLDER, (name, damage.__name__)
            assert len(said) == 1, said
            assert f"checkpoint {NEWEST}: " in said[0]
            assert f"using {OLDER}" in said[0]
            assert name.name in said[0] or MANIFEST in said[0], said
            shutil.rmtree(work)
            count += 1
    assert count >= 60
    assert {Path(*name.parts[1:]).parts[0] for name in files} >= {"params", "optimizer", "progress"}


@pytest.mark.parametrize(
    "change",
    [
        {"step": float("nan")},
        {"step": 10**39},
        {"score": ["²", "loss"]},
        {"files": {"params/x": [1]}},
    ],
)
def test_a_manifest_of_another_form_is_skipped(copy: Path, change: dict[str, Any]) -> None:
    path = copy / str(NEWEST) / MANIFEST
    path.write_text(json.dumps(sealed(unsealed(json.loads(path.read_text())) | change)))
    step, said = restored_step(copy)
    assert step == OLDER
    assert f"checkpoint {NEWEST}: " in said[0]


def test_a_part_of_another_step_is_detected(copy: Path) -> None:
    shutil.rmtree(copy / str(NEWEST) / "optimizer")
    shutil.copytree(copy / str(STEPS[0]) / "optimizer", copy / str(NEWEST) / "optimizer")
    step, said = restored_step(copy)
    assert step == OLDER
    assert "optimizer/" in said[0]


def test_a_renumbered_checkpoint_is_detected(copy: Path) -> None:
    shutil.copytree(copy / str(OLDER), copy / "999")
    step, said = restored_step(copy)
    assert step == NEWEST
    assert f"belongs to step {OLDER}" in said[0]


def test_empty_directories_and_foreign_files_are_harmless(copy: Path) -> None:
    (copy / "999").mkdir()
    (copy / "1000").write_text("not a checkpoint")
    (copy / "notes").mkdir()
    (copy / "08").mkdir()
    (copy / str(NEWEST) / "params" / ".DS_Store").write_bytes(b"finder")
    step, said = restored_step(copy)
    assert step == NEWEST
    assert "checkpoint 999: not finished" in said[0]
    assert "checkpoint 1000: is a file" in said[0]


def test_a_resumed_run_replaces_damaged_checkpoints(copy: Path) -> None:
    (copy / "999").mkdir()
    flip(copy / str(NEWEST) / "params" / "manifest.ocdbt", random.Random(1))
    with Checkpointer(copy, SECTION, say=lambda line: None) as checkpoints:
        assert checkpoints.on_disk.newest() == OLDER
        for step in (NEWEST, 999):
            checkpoints.save(state_at(step), step=step, progress={"step": step})
            checkpoints.wait()
            assert checkpoints.on_disk.newest() == step
    assert restored_step(copy) == (999, [])


def test_a_run_without_a_whole_checkpoint_names_all(copy: Path) -> None:
    for step in STEPS:
        (copy / str(step) / "progress" / "metadata").unlink()
    with (
        Checkpointer(copy, SECTION, read_only=True) as checkpoints,
        refuses("checkpoint.all_damaged", place=copy) as caught,
    ):
        checkpoints.on_disk.newest()
    assert "checkpoint 12: progress/metadata is missing" in str(caught.value)


def test_an_interrupted_save_does_not_prevent_a_start(tmp_path: Path) -> None:
    (tmp_path / "4" / "params").mkdir(parents=True)
    (tmp_path / "4" / "params" / "_METADATA").write_text("{")
    said: list[str] = []
    with Checkpointer(tmp_path, SECTION, say=said.append) as checkpoints:
        assert checkpoints.on_disk.newest() is None
    assert "not finished" in said[0]


def test_remains_of_a_killed_save_are_removed_and_unlisted(copy: Path) -> None:
    left = Path(shutil.copytree(copy / str(NEWEST), copy / "16.orbax-checkpoint-tmp"))
    assert restored_step(copy) == (NEWEST, [])
    assert left.exists()  # a reader changes nothing
    with Checkpointer(copy, SECTION):
        pass
    assert not left.exists()


def test_checkpoints_without_manifests_are_refused(copy: Path) -> None:
    for step in STEPS:
        (copy / str(step) / MANIFEST).unlink()
    with (
        Checkpointer(copy, SECTION, read_only=True) as checkpoints,
        refuses("checkpoint.all_damaged", place=copy) as caught,
    ):
        checkpoints.on_disk.newest()
    assert str(caught.value).count(f"no {MANIFEST}") == len(STEPS)


def test_a_file_named_checkpoints_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("")
    with refuses("checkpoint.not_a_directory", place=tmp_path / "checkpoints"):
        Checkpointer(tmp_path / "checkpoints", SECTION, read_only=True)


def test_a_requested_damaged_step_is_refused(copy: Path) -> None:
    delete(copy / str(OLDER) / "params" / "_METADATA", random.Random(0))
    with (
        Checkpointer(copy, SECTION, read_only=True) as checkpoints,
        refuses(
            "checkpoint.damaged", place=copy / str(OLDER), reason="params/_METADATA is missing"
        ),
    ):
        checkpoints.restore_params(abstract().params, step=OLDER)
