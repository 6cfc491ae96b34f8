"""Short runs of every objective on every encoder."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from bert_jax.runs.open_checkpoints import load_params
from bert_jax.runs.run_directory import open_run
from tests.project import ok, one_phase, write_config
from tests.support import small_encoder


class Variant(NamedTuple):
    """An objective with other settings than the defaults."""

    kind: str
    settings: dict[str, Any] = {}
    changes: dict[str, Any] = {}  # settings of the architecture


VARIANTS = {
    "disentangled electra": Variant("electra", {"embedding_sharing": "gradient_disentangled"}),
    "electra with a mask decoder": Variant(
        "electra",
        {"generator": {"num_hidden_layers": 2, "architecture": {"enhanced_mask_decoder": True}}},
    ),
    "shared attention": Variant(
        "electra",
        {"generator": {"num_hidden_layers": 2}},
        {"share": "attention", "num_hidden_groups": 2, "num_hidden_layers": 3},
    ),
}


def variant_of(name: str) -> Variant:
    """Returns a variant by name; the name of an objective is its default variant."""
    return VARIANTS.get(name, Variant(name))


def config_of(
    project: Path,
    folder: Path,
    objective: str,
    encoder: str,
    dataset: Path,
    *,
    teacher: Path | None = None,
) -> tuple[Path, str]:
    """Writes a configuration of 8 steps with dropout; returns its path and its run directory.

    The run keeps an average of its parameters. `teacher` is the run directory of the teacher of a
    distillation.
    """
    saves = {"every": 4, "keep_last": 2}
    values = one_phase(project, steps=8, checkpoint=saves, log_every=1)
    values["train"]["phases"][0]["dataset"] = str(dataset)
    values["train"] |= {"evaluation": {"every": 8, "examples": 24}, "ema": {"decay": 0.5}}
    sizes = {"hidden_size": 32, "num_attention_heads": 2, **variant_of(objective).changes}
    dropped = small_encoder(encoder, **sizes).with_dropout(0.1)
    of_tokenizer = {"vocab_size", "padding_position"}
    architecture = dropped.model_dump(exclude=of_tokenizer)
    execution = values["model"]["execution"]
    values["model"] = {"kind": encoder, "architecture": architecture, "execution": execution}
    variant = variant_of(objective)
    values["objective"] = {"kind": variant.kind, **variant.settings}
    if teacher is not None:
        values["objective"]["teacher"] = str(teacher)
    values["run_dir"] = str(folder / "run")
    return write_config(folder / "run.yaml", values), values["run_dir"]


def resumed(config: Path, run_dir: Path | str, folder: Path) -> Path:
    """Repeats the second half of a run, from its checkpoint after the first half."""
    copy = Path(shutil.copytree(run_dir, folder / "resumed"))
    shutil.rmtree(copy / "checkpoints" / "8")
    assert "resuming at step 4 of 8" in ok("pretrain", config, f"run_dir={copy}")
    return copy


def params_of(run_dir: Path | str, *, ema: bool = False) -> dict[str, Any]:
    """Returns the parameters of a run's last checkpoint, or their average, as numpy arrays."""
    return jax.device_get(load_params(open_run(run_dir), checkpoint="last", ema=ema).params)


def assert_equal_params(first: Path | str, second: Path | str, *, ema: bool = False) -> None:
    """Asserts that the last checkpoints of two runs, or their averages, are equal bit for bit."""
    found, expected = (params_of(run, ema=ema) for run in (first, second))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
