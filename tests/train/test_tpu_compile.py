"""The real train step compiles for real TPU topologies, on a machine without a TPU.

libtpu holds the TPU compiler; it is installed with the tests on Linux x86-64, the one platform it
is built for. Compiling runs in a process of its own, in which nothing else has opened a backend.
"""

import importlib.util
import json
import os
import subprocess
from typing import Any

import pytest

from tests.forked.forks import forked_python

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


# Topology, tensor axis, size of the model. Compiling base takes 45 s of CPU time on v3 and 70 s on
# v5e; the program of tiny has the same kinds of collectives, though not as many of each.
TINY = [("v3:4x4", 1, "tiny"), ("v5e:4x4", 2, "tiny")]
BASE = [("v3:4x4", 1, "base"), ("v5e:4x4", 2, "base")]


def compile_for(*programs: tuple[str, int, str]) -> list[dict[str, Any]]:
    """Compiles in a fresh process; returns what `tests.train.tpu_program` prints."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "XLA_FLAGS": "",  # libtpu refuses those of the CPU compiler
        # Unrolled loops are most of the instructions that the compiler schedules, and nothing that
        # is looked at here depends on them.
        "LIBTPU_INIT_ARGS": "--xla_tpu_enable_emitter_rolling=true",
        # Compiling opens no TPU: two processes may do it at once.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_MIN_LOG_LEVEL": "3",
        "TPU_STDERR_LOG_LEVEL": "3",
        "TPU_LOG_DIR": "disabled",
    }
    arguments = [",".join(map(str, program)) for program in programs]
    command = [forked_python(), "-m", "tests.train.tpu_program", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()[-len(programs) :]]


@pytest.fixture(scope="module")
def tiny() -> dict[str, dict[str, Any]]:
    """Both small programs, by topology, out of one process."""
    return dict(zip((topology for topology, *_ in TINY), compile_for(*TINY), strict=True))


@pytest.mark.parametrize(("topology", "tensor", "size"), TINY)
def test_the_step_sums_gradients_over_the_pod(
    tiny: dict[str, dict[str, Any]], topology: str, tensor: int, size: str
) -> None:
    check(tiny[topology], topology, tensor)


@pytest.mark.chaos
@pytest.mark.parametrize(("topology", "tensor", "size"), BASE)
def test_base_fits_and_sums_gradients_over_the_pod(topology: str, tensor: int, size: str) -> None:
    """bf16, dropout 0.1, the hardware's random bits; base as 256 × 512 with 77 predictions."""
    (found,) = compile_for((topology, tensor, size))
    check(found, topology, tensor)


def check(found: dict[str, Any], topology: str, tensor: int) -> None:
    peak = found["peak_bytes"]
    print(f"\n{topology} tensor {tensor}: peak {peak / GIB:.2f} GiB, {found['collectives']}")
    assert found["devices"] == DEVICES[topology]
    # The state stays where it is for the whole step, so a smaller peak would be a misread one.
    assert found["argument_bytes"] < peak < HBM[topology]
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
