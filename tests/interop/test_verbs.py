"""A run survives export and import with the command line, in all formats."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy

from bert_jax.parallel.mesh import open_mesh
from bert_jax.runs.open_checkpoints import load_moments, load_params
from bert_jax.runs.run_directory import open_run
from bert_jax.train.progress import TrainProgress
from tests.interop.tf1_writer import read_tf1
from tests.project import MESH, invoke, ok, project_config, refused, says, write_config

pytestmark = pytest.mark.slow

STEPS = 6


@pytest.fixture(scope="module")
def settings(project: Path) -> dict[str, Any]:
    """Settings of two layers and two short phases with `STEPS` steps in total, on eight devices."""
    values = project_config(project)
    values["mesh"] = MESH
    values["model"]["architecture"]["num_hidden_layers"] = 2  # two layers, to test their order
    values["train"]["evaluation"] = None
    for phase, steps in zip(values["train"]["phases"], (4, 2), strict=True):
        phase["steps"] = steps
    return values


@pytest.fixture(scope="module")
def trained(settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a run with a few steps, so that its moments are not zero."""
    root = tmp_path_factory.mktemp("trained")
    config = write_config(root / "config.yaml", settings)
    ok("pretrain", config, f"run_dir={root / 'run'}")
    return root / "run"


def everything(directory: Path) -> list[Any]:
    """Returns parameters and moments of a run's last checkpoint, in a fixed order."""
    opened = open_run(directory)
    loaded = load_params(opened, checkpoint="last", mesh=open_mesh(one_device=True))
    assert loaded.step == STEPS
    return jax.tree.leaves(jax.device_get((loaded.params, load_moments(opened, loaded))))


def test_google_researchs_format_keeps_moments_and_step(trained: Path, tmp_path: Path) -> None:
    ok("export", trained, tmp_path / "tf", "--to", "tf")
    tensors = read_tf1(tmp_path / "tf" / "bert_model.ckpt")
    assert tensors["global_step"] == STEPS
    assert "bert/pooler/dense/kernel/adam_v" in tensors
    ok("import", tmp_path / "tf", tmp_path / "back")
    for ours, back in zip(everything(trained), everything(tmp_path / "back"), strict=True):
        np.testing.assert_array_equal(back, ours)
    ok("export", tmp_path / "back", tmp_path / "again", "--to", "tf")
    again = read_tf1(tmp_path / "again" / "bert_model.ckpt")
    assert {name: value.tobytes() for name, value in again.items()} == {
        name: value.tobytes() for name, value in tensors.items()
    }


def test_pretraining_resumes_at_an_imported_step(
    trained: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    ok("export", trained, tmp_path / "tf", "--to", "tf")
    back = tmp_path / "back"
    ok("import", tmp_path / "tf" / "bert_model.ckpt", back)
    config = write_config(tmp_path / "config.yaml", settings)
    line = refused("pretrain", config, f"run_dir={back}")
    assert line.key == "phases.too_few_steps"
    says(line, found=STEPS, step=STEPS)
    said = ok("pretrain", config, f"run_dir={back}", "train.phases.1.steps=4")
    assert f"resuming at step {STEPS} of {STEPS + 2}" in said
    lines = [json.loads(text) for text in (back / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "train"] == [STEPS + 2]


def test_an_imported_step_belongs_to_its_phase() -> None:
    places = [TrainProgress.at(step, [4, 3]) for step in (0, 3, 4, 6)]
    assert [(at.step, at.phase, at.phase_step) for at in places] == [
        (0, 0, 0),
        (3, 0, 3),
        (4, 1, 0),
        (6, 1, 2),
    ]


def test_round_trip_to_hugging_face_keeps_mask_filling(
    trained: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    said = ok("export", trained, tmp_path / "hf")
    assert "a pooler, an MLM head and a next-sentence head" in said
    card = (tmp_path / "hf" / "README.md").read_text()
    assert json.loads((trained / "provenance.json").read_text())["tokenizer_hash"] in card
    assert (trained / "config.yaml").read_text().strip() in card
    assert "seq_length: 48" in card
    assert "library_name: transformers" in card
    ok("import", tmp_path / "hf", tmp_path / "back")
    sentence = "the function returns a [MASK] ."
    first, second = (
        invoke("fill-mask", at, sentence).stdout for at in (trained, tmp_path / "back")
    )
    assert first.splitlines()[1].split()[::2] == second.splitlines()[1].split()[::2]
    config, back = write_config(tmp_path / "config.yaml", settings), tmp_path / "back"
    line = refused("pretrain", config, f"run_dir={back}")
    assert line.key == "checkpoint.params_only"
    says(line, found=str(back), step=0)


def test_stablehlo_export_has_the_requested_outputs(trained: Path, tmp_path: Path) -> None:
    output = tmp_path / "program"
    ok("export", trained, output, "--to", "stablehlo", "--outputs", "pooled,mlm_logits")
    signature = json.loads((output / "signature.json").read_text())
    assert "mlm_logits" in json.dumps(signature)
    assert "last_hidden_state" not in json.dumps(signature["outputs"])
    assert safetensors.numpy.load_file(output / "model.safetensors")
    card = (output / "README.md").read_text()
    assert "jax.export.deserialize" in card
    assert "library_name" not in card  # transformers cannot load it
    assert "The tokenizer is in `tokenizer/`." in card
    misspelt = ("--to", "stablehlo", "--outputs", "poold")
    line = refused("export", trained, tmp_path / "x", *misspelt)
    says(line, key="export.output_unknown", found="poold")
    assert not (tmp_path / "x").exists()


def test_options_of_another_format_are_refused(trained: Path, tmp_path: Path) -> None:
    line = refused("export", trained, tmp_path / "x", "--to", "tf", "--as", "BertModel")
    assert line.key == "export.option"
    says(line, place="--as", found="tf", allowed="hf")
