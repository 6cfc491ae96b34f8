"""The real train step compiles for real TPU topologies, on a machine without a TPU.

libtpu holds the TPU compiler; it is installed with the tests on Linux x86-64, the one platform it
is built for. Compiling runs in a process of its own, in which nothing else has opened a backend.
"""

import importlib.util
import json
from pathlib import Path

import pytest

from tests.tpu_compiler import compile_for_tpus

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="libtpu exists for Linux x86-64 alone"
    ),
]

GIB = 2**30
# Memory of one JAX device: a v3 chip of 32 GiB shows as two (cloud.google.com/tpu/docs/v3, /v5e).
HBM = {"v3:4x4": 16 * GIB, "v5e:4x4": 16 * GIB}
DEVICES = {"v3:4x4": 32, "v5e:4x4": 16}


# Topology, tensor axis, size of the model. The program of tiny has the same kinds of collectives as
# that of base, though not as many of each.
TINY = [("v3:4x4", 1, "tiny"), ("v5e:4x4", 2, "tiny")]
BASE = [("v3:4x4", 1, "base"), ("v5e:4x4", 2, "base")]


@pytest.mark.parametrize(
    ("topology", "tensor", "size"),
    [*TINY, *(pytest.param(*each, marks=pytest.mark.chaos) for each in BASE)],
)
def test_the_step_fits_and_sums_gradients_over_the_pod(
    topology: str, tensor: int, size: str, tmp_path: Path
) -> None:
    """bf16, dropout 0.1, the hardware's random bits; base as 256 × 512 with 77 predictions."""
    said = compile_for_tpus("tests.train.tpu_program", topology, tensor, size, tmp_path)
    found = json.loads(said.splitlines()[-1])
    peak = found["peak_bytes"]
    print(f"\n{topology} tensor {tensor}: peak {peak / GIB:.2f} GiB, {found['collectives']}")
    assert found["devices"] == DEVICES[topology]
    # The state stays where it is for the whole step, so a smaller peak would be a misread one.
    assert 0 < found["temporary_bytes"] < peak < HBM[topology]
    # Gradients are summed over the data axis; under tensor parallelism each layer's halves are
    # summed over pairs as well.
    collectives, groups = found["collectives"], set(found["sum_groups"])
    assert collectives["all-reduce"] + collectives["reduce-scatter"] == len(found["sum_groups"]) > 0
    assert DEVICES[topology] // tensor in groups
    assert (tensor in groups) is (tensor > 1)
    # The owners of the moments hand the new parameters round.
    assert collectives["all-gather"] > 0
    # What is gathered is not copied where it becomes the result, nor the parameter in whose place
    # it comes: only one that is a result as it is would be.
    assert found["copied_gathers"] < collectives["all-gather"] / 2
    # No activation is dealt out anew between the data axis and another.
    assert collectives["all-to-all"] == 0
