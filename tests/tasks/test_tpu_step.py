"""Fine-tuning's step for TPUs, compiled by libtpu: the kernels of pretraining's encoder."""

import importlib.util
import json

import pytest

from tests.tpu_compiler import compile_for_tpus


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu exists for Linux x86-64 alone"
)
def test_a_step_has_the_kernels_of_the_encoder() -> None:
    """A classifier's last layer is of [CLS] alone, and has kernels of its own."""
    printed = compile_for_tpus("tests.tasks.tpu_program", "v5e:2x2").splitlines()[-1]
    found = json.loads(printed)["v5e:2x2"]
    kinds = {"attention_backward", "attention_forward", "gelu_product"}
    kinds |= {"norm_backward", "norm_forward"}
    assert set(found) == kinds
    assert found.count("attention_forward") == found.count("attention_backward") == 2
