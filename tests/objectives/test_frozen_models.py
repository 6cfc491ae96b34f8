"""A task with a frozen model, in the real train loop: a small distillation."""

import re
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.objectives import masked_lm
from bert_jax.runs.open_checkpoints import read_checkpoints
from bert_jax.train import frozen as module
from bert_jax.train.frozen import FrozenParams, hash_params
from bert_jax.train.state import define_model, draw_params, named, trained_params
from bert_jax.workflows import pretraining, pretraining_scores
from tests.objectives.distilled import Distilled
from tests.objectives.runs import assert_equal_params, config_of, params_of, resumed
from tests.project import ok, refused, says
from tests.support import small_task
from tests.train.harness import mesh_of


@pytest.fixture(scope="module")
def teacher(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints at the steps 4 and 8."""
    folder = tmp_path_factory.mktemp("teacher")
    config, run_dir = config_of(project, folder, "bert", "bert", project / "dataset32")
    ok("pretrain", config)
    return Path(run_dir)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch, teacher: Path) -> list[FrozenParams]:
    """Makes the objective `Distilled`; returns the frozen parameters that are loaded."""
    found: list[FrozenParams] = []

    def load(*arguments: Any) -> FrozenParams:
        found.append(module.load_frozen(*arguments))
        return found[-1]

    monkeypatch.setattr(masked_lm, "MaskedLanguageModel", Distilled)
    monkeypatch.setattr(Distilled, "teacher", (teacher, 8), raising=False)
    for user in (pretraining, pretraining_scores):
        monkeypatch.setattr(user, "load_frozen", load)
    return found


def test_a_frozen_model_is_used_unchanged_and_checked_by_hash(
    project: Path,
    tmp_path: Path,
    teacher: Path,
    held: list[FrozenParams],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, run_dir = config_of(project, tmp_path, "bert", "bert", project / "dataset32")
    ok("pretrain", config)
    assert hash_params(held[0].params["teacher"]) == held[0].hashes["teacher"]
    expected = params_of(teacher)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(held[0].params["teacher"]), expected)
    # The teacher changes the student, and the student has no parameter of the teacher.
    student = params_of(Path(run_dir))
    assert [name for name, _ in named(student)] == [name for name, _ in named(expected)]
    assert not np.array_equal(student["mlm"]["bias"], expected["mlm"]["bias"])
    progress = read_checkpoints(run_dir, lambda checkpoints: checkpoints.progress(8))
    assert progress["frozen"] == held[0].hashes
    ok("evaluate", run_dir)
    copy = resumed(config, run_dir, tmp_path)
    assert_equal_params(copy, run_dir)

    shutil.rmtree(copy / "checkpoints" / "8")
    monkeypatch.setattr(Distilled, "teacher", (teacher, 4))
    for result in (
        refused("pretrain", config, f"run_dir={copy}"),
        refused("evaluate", run_dir),
    ):
        assert result.key == "frozen.changed"
        says(result, model="teacher")
        for held_by in (held[-1], held[0]):
            shown = re.findall(r"[0-9a-f]{12}", result)
            assert any(each in held_by.hashes["teacher"] for each in shown)


def test_the_hash_depends_on_names_and_values_but_not_on_the_mesh() -> None:
    task = small_task(num_hidden_layers=1)
    model = define_model(task.build)
    one, eight = (
        draw_params(model, trained_params(model, mesh_of(shape)), seed=0)
        for shape in ((1, 1, 1), (2, 2, 2))
    )
    assert not jax.tree.leaves(eight)[-1].sharding.is_fully_replicated
    assert hash_params(one) == hash_params(eight)
    changed = jax.tree.map(lambda leaf: leaf, one)
    changed["mlm"]["bias"] = changed["mlm"]["bias"].at[3].set(1e-30)
    renamed = {"other" if part == "mlm" else part: value for part, value in one.items()}
    assert len({hash_params(each) for each in (one, changed, renamed)}) == 3
