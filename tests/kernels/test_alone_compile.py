"""The kernels of a layer beside attention compile for every generation that they are chosen on."""

import importlib.util
import json

import pytest

from tests.tpu_compiler import compile_for_tpus

TOPOLOGIES = ("v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2")


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu exists for Linux x86-64 alone"
)
@pytest.mark.parametrize(
    ("length", "width", "dtype"),
    [
        (77, 768, "bfloat16"),
        (512, 2048, "float32"),
        pytest.param(1000, 1024, "bfloat16", marks=pytest.mark.chaos),
        pytest.param(4096, 768, "bfloat16", marks=pytest.mark.chaos),
    ],
)
def test_forward_and_backward_kernels_compile(length: int, width: int, dtype: str) -> None:
    printed = compile_for_tpus("tests.kernels.alone_program", length, width, dtype, *TOPOLOGIES)
    expected = ["gelu_product"] * (dtype == "bfloat16") + ["norm_backward", "norm_forward"]
    assert json.loads(printed.splitlines()[-1]) == dict.fromkeys(TOPOLOGIES, expected)
