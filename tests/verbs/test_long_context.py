"""Phases with rotary frequencies of their own: short rows, then longer rows with another theta."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax.config import load_config
from bert_jax.encoders.build import encoder_builder
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.planning.compilation.lowering import lower_step
from bert_jax.planning.request import CompileRequest
from bert_jax.runs.open_checkpoints import load_params
from bert_jax.runs.run_directory import open_run
from bert_jax.train.metrics_writer import read_metrics
from bert_jax.train.state import define_model
from tests.objectives.runs import assert_equal_params
from tests.project import MESH, ok, project_config, refused, says, write_config
from tests.support import small_encoder

pytestmark = pytest.mark.slow

THETAS = 10.0, 500.0
STEPS = 3  # of each phase
# Large initial parameters: attention must depend on positions.
CHANGES = {"global_theta": 77.0, "initializer_range": 0.3, "num_hidden_layers": 1}
SIZES = small_encoder("modernbert", hidden_size=32, num_attention_heads=2, **CHANGES)


@pytest.fixture(scope="module")
def config(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two phases of three steps. The first update of the second phase has the learning rate 0."""
    folder, values = tmp_path_factory.mktemp("long"), project_config(project)
    first, second = values["train"]["phases"]
    first |= {"steps": STEPS, "rotary_theta": THETAS[0], "packing": {"max_examples": 3}}
    second |= {"steps": STEPS, "rotary_theta": THETAS[1], "learning_rate": 1e-3, "warmup_steps": 2}
    values["model"] |= {
        "kind": "modernbert",
        "architecture": SIZES.model_dump(exclude={"vocab_size"}),
    }
    values["objective"], values["optimizer"]["warmup_steps"] = {"kind": "roberta"}, 1
    values["run_dir"], values["mesh"] = str(folder / "run"), MESH
    values["train"] |= {
        "evaluation": {"every": 99},
        "checkpoint": {"every": 1, "keep_last": 9},
        "log_every": 1,
    }
    values["train"]["phases"] = [first, second]
    for phase, length in zip((first, second), (32, 48), strict=True):
        phase["dataset"] = str(folder / f"dataset{length}")
    path = write_config(folder / "run.yaml", values)
    for length in (32, 48):
        output = f"examples.output={folder / f'dataset{length}'}"
        kind, longest = "examples.kind=full_sentences", f"examples.max_seq_length={length}"
        ok("examples", path, output, kind, longest)
    return path


@pytest.fixture(scope="module")
def run_dir(config: Path) -> Path:
    ok("pretrain", config)
    return config.parent / "run"


def score_of(run_dir: Path, step: int, dataset: Path) -> float:
    ok("evaluate", run_dir, "--checkpoint", step, "--dataset", dataset)
    (path,) = (run_dir / "evaluations").glob(f"*{dataset.name}-validation-{step}.json")
    return json.loads(path.read_text())["scores"]["loss"]


@pytest.mark.parametrize("step", [2, 4])
def test_both_phases_resume_bit_for_bit(
    config: Path, run_dir: Path, tmp_path: Path, step: int
) -> None:
    copy = Path(shutil.copytree(run_dir, tmp_path / "copy"))
    for later in range(step + 1, 2 * STEPS + 1):
        shutil.rmtree(copy / "checkpoints" / str(later))
    ok("pretrain", config, f"run_dir={copy}")
    assert_equal_params(copy, run_dir)


def test_equal_parameters_are_another_network_in_the_next_phase(
    config: Path, run_dir: Path
) -> None:
    datasets = [config.parent / f"dataset{length}" for length in (32, 48)]
    before, after = (bert_jax.load(run_dir, checkpoint=str(STEPS + at)) for at in (0, 1))
    jax.tree.map(np.testing.assert_array_equal, before.params, after.params)
    scores = [score_of(run_dir, STEPS + at, datasets[0]) for at in (0, 1)]
    assert abs(scores[0] - scores[1]) > 1e-4
    # Training evaluated the first phase with its own theta, and the second with its own.
    found = {line["step"]: line["loss"] for line in read_metrics(run_dir, kind="validation")}
    assert found[STEPS] == pytest.approx(scores[0], rel=1e-6)
    last = score_of(run_dir, 2 * STEPS, datasets[1])
    assert found[2 * STEPS] == pytest.approx(last, rel=1e-6)

    run, texts = open_run(run_dir), ["the module is imported when a function returns"]
    for loaded, theta in ((before, THETAS[0]), (after, THETAS[1])):
        architecture = run.architecture.model_copy(update={"global_theta": theta})
        assert loaded.architecture == architecture
        model = define_model(encoder_builder(architecture, run.model.execution, run.heads))
        read = load_params(run, checkpoint=str(loaded.step))
        assert (read.architecture, read.model.graphdef) == (architecture, model.graphdef)
    assert np.abs(before.encode(texts) - after.encode(texts)).max() > 1e-5


def test_an_exported_checkpoint_has_the_theta_of_its_phase(run_dir: Path, tmp_path: Path) -> None:
    for step, theta in zip((STEPS, STEPS + 1), THETAS, strict=True):
        exported = tmp_path / str(step)
        ok("export", run_dir, exported, "--to", "hf", "--checkpoint", step)
        assert json.loads((exported / "config.json").read_text())["global_rope_theta"] == theta
        ours, theirs = bert_jax.load(run_dir, checkpoint=str(step)), bert_jax.load(exported)
        text = "the module is imported when a function returns"
        np.testing.assert_allclose(theirs.encode(text), ours.encode(text), atol=1e-6)


def test_a_plan_compiles_each_phase_with_its_own_theta(config: Path) -> None:
    mesh = make_mesh(MeshSection(data=1), jax.devices()[:1])

    def program(*overrides: str) -> str:
        run = load_config(config, overrides)
        parts = {name: getattr(run, name) for name in ("model", "objective", "mesh", "optimizer")}
        assert run.train is not None
        place: Any = {"topology": "v5e:2x2", "phase": 1}
        request = CompileRequest(**place, vocab_size=640, train=run.train, **parts)
        return lower_step(request, mesh).lowered.as_text()

    without, same = "train.phases.1.rotary_theta=null", "model.architecture.global_theta=500.0"
    assert program() == program(without, same)
    assert program() != program(without)


def test_an_encoder_without_rotary_positions_is_refused(config: Path) -> None:
    line = refused("pretrain", config, "model={size: tiny}")
    assert line.key == "phases.rotary_theta"
    says(line, place="train.phases.0.rotary_theta")
    says(line, found=10.0, encoder="bert")
