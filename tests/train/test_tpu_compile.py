"""The train step compiles for TPU topologies, on a machine without a TPU.

Needs libtpu, which contains the TPU compiler and exists only for Linux x86-64.
"""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bert_jax.config import parse_config
from bert_jax.planning import planning
from bert_jax.verbs.plan import plan
from tests.compiler_pair import compiles_for_tpus

pytestmark = [pytest.mark.slow, compiles_for_tpus]

GIB = 2**30
# Memory of one JAX device. A v3 chip is two devices (cloud.google.com/tpu/docs/v3, /v5e).
HBM = {"v3:4x4": 16 * GIB, "v5e:4x4": 16 * GIB}
DEVICES = {"v3:4x4": 32, "v5e:4x4": 16}
# Model size → (vocabulary size, rows, positions, predictions per row). The programs of tiny and
# base have the same kinds of collectives.
SHAPES = {"base": (30_522, 256, 512, 77), "tiny": (2_048, 64, 128, 20)}


@pytest.mark.parametrize(
    ("topology", "tensor", "size"),
    [
        ("v3:4x4", 1, "tiny"),
        *(
            pytest.param(*each, marks=pytest.mark.chaos)
            for each in (("v5e:4x4", 2, "tiny"), ("v3:4x4", 1, "base"), ("v5e:4x4", 2, "base"))
        ),
    ],
)
def test_the_step_fits_and_sums_gradients_over_the_pod(
    topology: str, tensor: int, size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans with default settings: bf16, dropout 0.1, the hardware's random bits.

    With `SHALLOW` 1, `plan` skips code generation, which is slow and does not affect these checks.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(planning, "SHALLOW", 1)
    vocab_size, rows, length, predictions = SHAPES[size]
    phase = {"dataset": "none", "steps": 1, "seq_length": length, "batch_size": rows}
    values: dict[str, Any] = {
        "model": {"size": size},
        "mesh": {"tensor": tensor},
        "train": {"phases": [phase | {"max_predictions": predictions}], "evaluation": None},
    }
    config = parse_config(values, source="test")
    console = Console(quiet=True)
    (found,) = plan(config, [topology], vocab_size=vocab_size, suggest=False, console=console)
    step = found.phases[0].train
    assert found.topology.devices == DEVICES[topology]
    # The peak includes the state, so it must exceed the temporaries.
    assert step.memory is not None
    assert 0 < step.memory.temporaries < step.memory.peak < HBM[topology]
    # Gradients are summed over the data axis. Tensor parallelism also sums the partial results of
    # each layer over the tensor axis.
    kinds = {one.kind for one in step.collectives}
    sums = [one for one in step.collectives if one.kind in ("all-reduce", "reduce-scatter")]
    groups = {one.group for one in sums}
    assert DEVICES[topology] // tensor in groups
    assert (tensor in groups) is (tensor > 1)
    # ZeRO gathers the new parameters to all devices.
    assert "all-gather" in kinds
    # No activation is resharded from the data axis to another axis.
    assert "all-to-all" not in kinds
