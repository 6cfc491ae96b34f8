"""``configs/pretrain/fast.yaml`` with small sizes: all its changes together."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from bert_jax.config import load_config
from bert_jax.files.yaml_file import dump_yaml
from bert_jax.train.metrics_writer import read_metrics
from tests.objectives.runs import assert_equal_params
from tests.project import ok

pytestmark = pytest.mark.slow

LAST = 10  # steps; the batch ramp ends after step 6, the first phase after step 7
IN_RAMP, IN_DECAY = 4, 8  # the decay begins after step 5
SIZES = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 64, "max_position_embeddings": 48}
OTHER_MESH = "{platform: cpu, data: 2, fsdp: 2, tensor: 2}"


def write_recipe(project: Path, folder: Path) -> Path:
    """Writes the recipe with both of its phases, and makes its datasets."""
    values = load_config("pretrain/fast.yaml").model_dump(mode="json")
    values |= {"vocab": None, "tokenizer": f"{project}/tokenizer", "run_dir": f"{folder}/run"}
    values["model"]["architecture"] |= SIZES
    values["model"]["execution"]["dtype"] = "float32"
    values["optimizer"] |= {"warmup_steps": 1, "decay_fraction": 0.5}
    values["loader"]["workers"] = 0
    train = values["train"]
    train |= {"log_every": 1, "evaluation": None, "checkpoint": {"every": 4, "keep_last": 4}}
    first, second = train["phases"]
    for phase, length, steps in ((first, 32, 7), (second, 48, 3)):
        dataset = f"{folder}/dataset{length}"
        phase |= {"dataset": dataset, "seq_length": length, "steps": steps, "accumulation": 2}
    first |= {"batch_size": 64}
    first["batch_ramp"] = [{"steps": 3, "batch_size": 16}, {"steps": 3, "batch_size": 32}]
    second["batch_size"] = 16
    values["examples"] |= {"input": [f"{project}/text/*.txt"], "workers": 1}
    values["examples"] |= {"tokenizer": values["tokenizer"], "validation_fraction": 0.1}
    path = folder / "fast.yaml"
    path.write_text(dump_yaml(values | {"mesh": {"platform": "cpu", "data": 8}}))
    for phase in train["phases"]:
        length = f"examples.max_seq_length={phase['seq_length']}"
        ok("examples", path, length, f"examples.output={phase['dataset']}")
    return path


def losses(run: Path) -> list[float]:
    return [line["mlm_loss"] for line in read_metrics(run, kind="train")]


def test_it_resumes_bit_for_bit_and_has_the_same_losses_on_every_mesh(
    project: Path, tmp_path: Path
) -> None:
    config, run = write_recipe(project, tmp_path), tmp_path / "run"
    ok("pretrain", config)
    assert len(losses(run)) == LAST
    for step in (IN_DECAY, IN_RAMP):
        copy = Path(shutil.copytree(run, tmp_path / f"from{step}"))
        for saved in (copy / "checkpoints").iterdir():
            if saved.name.isdecimal() and int(saved.name) > step:
                shutil.rmtree(saved)
        assert f"resuming at step {step} of {LAST}" in ok("pretrain", config, f"run_dir={copy}")
        assert_equal_params(copy, run)
        assert losses(copy) == losses(run)

    ok("pretrain", config, f"run_dir={tmp_path}/other", f"mesh={OTHER_MESH}")
    np.testing.assert_allclose(losses(tmp_path / "other"), losses(run), rtol=2e-5)
