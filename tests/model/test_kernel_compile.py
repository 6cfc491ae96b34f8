"""The kernels compile for every generation that `auto` chooses them on."""

import importlib.util
import json

import pytest

from tests.tpu_compiler import compile_for_tpus

TOPOLOGIES = ("v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2")
LONG = [pytest.param(each, TOPOLOGIES, marks=pytest.mark.chaos) for each in (512, 1024, 2048)]


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu exists for Linux x86-64 alone"
)
@pytest.mark.parametrize(
    ("length", "topologies"), [(128, TOPOLOGIES), (1024, TOPOLOGIES[1:2]), *LONG]
)
def test_forward_and_backward_kernels_compile(length: int, topologies: tuple[str, ...]) -> None:
    """At 1,024 tokens the backward one has two tiles of queries."""
    printed = compile_for_tpus("tests.model.kernel_program", length, *topologies)
    expected = ["attention_backward", "attention_forward"]
    assert json.loads(printed.splitlines()[-1]) == dict.fromkeys(topologies, expected)
