"""The kernels of the loss compile for every generation that `auto` chooses them on."""

import importlib.util
import json

import pytest

from tests.tpu_compiler import compile_for_tpus

TOPOLOGIES = ("v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2")


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu exists for Linux x86-64 alone"
)
@pytest.mark.parametrize(
    ("rows", "hidden", "pieces", "dtype"),
    [
        (77, 768, 7648, "bfloat16"),  # of four devices each: no multiple of 128
        (12, 64, 256, "float32"),
        # As many rows as fit, of one group and of several, of columns that fill no register.
        (1232, 1024, 30592, "bfloat16"),
        pytest.param(5000, 312, 30592, "float32", marks=pytest.mark.chaos),
        pytest.param(5000, 2048, 119552, "bfloat16", marks=pytest.mark.chaos),
    ],
)
def test_both_kernels_compile(rows: int, hidden: int, pieces: int, dtype: str) -> None:
    sizes = (rows, hidden, pieces, dtype)
    printed = compile_for_tpus("tests.kernels.cross_entropy_program", *sizes, *TOPOLOGIES)
    expected = ["cross_entropy_backward", "cross_entropy_forward"]
    assert json.loads(printed.splitlines()[-1]) == dict.fromkeys(TOPOLOGIES, expected)
