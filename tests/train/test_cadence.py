"""When checkpoints are saved, and which of them stay."""

from pathlib import Path

import pytest
from etils import epath

from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.checkpoint_directory import CheckpointDirectory
from bert_jax.train.manifest import SelectionScore
from bert_jax.train.sections import CheckpointSection
from tests.train.checkpoints import save_steps, state_at


def kept(directory: Path) -> list[int]:
    return sorted(int(path.name) for path in directory.iterdir())


def save(
    directory: Path, scores: dict[int, SelectionScore | None], section: CheckpointSection
) -> int | None:
    """Saves a state with each score; returns the best step."""
    with Checkpointer(directory, section) as checkpoints:
        for step, score in scores.items():
            checkpoints.save(state_at(step), step=step, progress={}, selection_score=score)
        return checkpoints.on_disk.best()


def test_the_newest_those_of_every_so_many_steps_and_the_best_stay(tmp_path: Path) -> None:
    section = CheckpointSection(keep_last=2, keep_every=10, keep_best=1)
    values = {5: 3.0, 10: 2.5, 15: 1.0, 20: 1.5, 25: 2.0, 30: 2.0, 35: 1.25}
    scores = {step: SelectionScore(value, "dev") for step, value in values.items()}
    assert save(tmp_path, scores, section) == 15
    assert kept(tmp_path) == [10, 15, 20, 30, 35]


def test_the_best_is_that_of_one_phase_and_one_validation_set(tmp_path: Path) -> None:
    section = CheckpointSection(keep_last=1, keep_best=1)
    short = {step: SelectionScore(step / 10, "phase 0") for step in (2, 4)}
    longer = {6: SelectionScore(9.0, "phase 1"), 8: SelectionScore(9.5, "phase 1")}
    assert save(tmp_path, short, section) == 2
    assert save(tmp_path, longer, section) == 6
    assert kept(tmp_path) == [6, 8]


def test_of_equal_scores_the_newer_is_the_best(tmp_path: Path) -> None:
    scores = {step: SelectionScore(1.0, "dev") for step in (1, 2, 3)}
    assert save(tmp_path, scores, CheckpointSection()) == 3


def test_a_damaged_best_is_passed_over_aloud(tmp_path: Path) -> None:
    save_steps(tmp_path)  # each is better than the one before
    (tmp_path / "12" / "params" / "_METADATA").write_text("{}")
    said: list[str] = []
    found = CheckpointDirectory(epath.Path(tmp_path), say=said.append)
    assert found.best() == 8
    assert "checkpoint 12: params/_METADATA" in said[0]


def test_collecting_garbage_leaves_the_only_good_one(
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
        pytest.raises(Exception, match=r"checkpoint 8 was NOT SAVED.*the last one is 4"),
        Checkpointer(tmp_path, warn, say=said.append) as checkpoints,
    ):
        checkpoints.save(state_at(8), step=8, progress={})
    assert "NOT SAVED" in said[0]
    assert kept(tmp_path) == [4]
