"""With JAX's 64-bit numbers, every step of the way to features has the same results."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.train.metrics_writer import read_metrics
from tests.project import bert_jax, write_config
from tests.tasks.runs import tiny_config, write_table


def run(*arguments: object) -> None:
    done = bert_jax(*arguments)
    assert done.returncode == 0, done.stderr[-3000:]


def losses(run_dir: Path) -> list[Any]:
    return [line["loss"] for line in read_metrics(run_dir) if "loss" in line]


def test_they_change_no_result(
    config: Path, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pretraining, fine-tuning and features, with dropout."""
    table = write_table(tmp_path, 32, 3)
    values = tiny_config(tmp_path, epochs=1, log_every=1, max_length=8, dropout=0.1)
    values["mesh"] = {"platform": "cpu"}
    values["finetune"]["task"] |= {"train": str(table), "dev": str(table)}
    tuned = write_config(tmp_path / "finetune.yaml", values)
    found = {}
    for bits in (32, 64):
        monkeypatch.setenv("JAX_ENABLE_X64", str(int(bits == 64)))
        run("finetune", tuned, f"run_dir={tmp_path / f'tuned{bits}'}")
        features = tmp_path / f"features{bits}.npz"
        run("features", alone, table, features, "--column", "text")
        found[bits] = losses(tmp_path / f"tuned{bits}"), np.load(features)["vectors"]
    run("pretrain", config, f"run_dir={tmp_path / 'pretrained64'}")
    assert losses(tmp_path / "pretrained64") == pytest.approx(losses(alone), rel=1e-6)
    assert found[64][0] == pytest.approx(found[32][0], rel=1e-6)
    np.testing.assert_allclose(found[64][1], found[32][1], rtol=1e-6)
