"""Settings that change during a run: they resume bit for bit in the middle of a change."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.runs.open_checkpoints import open_checkpoints
from bert_jax.train.metrics_writer import read_metrics
from tests.objectives.runs import assert_equal_params
from tests.project import ok, one_phase, write_config

pytestmark = pytest.mark.slow

LAST, SAVED = 9, 6  # steps; the second phase begins after step 2 and its decay after step 4
PHASES = (
    {"steps": 2, "learning_rate": 1e-3, "decay_fraction": 0},
    {
        "steps": 7,
        "learning_rate": 2e-3,
        "warmup_steps": 1,
        "decay_fraction": 0.72,
        "batch_size": 16,
        "batch_ramp": [{"steps": 5, "batch_size": 8}],
    },
)
OPTIMIZERS = {
    "muon": {"name": "muon"},
    "stable_adamw": {"name": "stable_adamw", "bias_correction": True},
}


def config_of(project: Path, folder: Path, optimizer: dict[str, Any]) -> Path:
    values = one_phase(project, log_every=1, evaluation=None)
    values["train"]["checkpoint"] = {"every": SAVED, "keep_last": 2}
    (phase,) = values["train"]["phases"]
    values["train"]["phases"] = [phase | each for each in PHASES]
    values["objective"] = {"masking": {"rate": 0.4, "final_rate": 0.15}}
    values["optimizer"] = optimizer | {"decay": "1-sqrt", "decay_fraction": 0.5}
    values["run_dir"] = str(folder / "run")
    return write_config(folder / "run.yaml", values)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_run_resumes_bit_for_bit_in_the_middle_of_its_decays(
    project: Path, tmp_path: Path, optimizer: str
) -> None:
    config = config_of(project, tmp_path, OPTIMIZERS[optimizer])
    ok("pretrain", config)
    rates = [line["learning_rate"] for line in read_metrics(tmp_path / "run", kind="train")]
    falling = [2e-3 * (1 - (into / 5) ** 0.5) for into in range(5)]
    np.testing.assert_allclose(rates, [1e-3, 1e-3, 0.0, 2e-3, *falling], rtol=1e-5)

    with open_checkpoints(tmp_path / "run") as checkpoints:
        position = checkpoints.progress(LAST)["position"]
    assert position["example_index"] == 5 * 8 + 2 * 16  # rows of the second phase
    copy = Path(shutil.copytree(tmp_path / "run", tmp_path / "copy"))
    shutil.rmtree(copy / "checkpoints" / str(LAST))
    assert f"resuming at step {SAVED} of {LAST}" in ok("pretrain", config, f"run_dir={copy}")
    assert_equal_params(copy, tmp_path / "run")
