"""The kernels compile for every generation that `auto` chooses them on."""

import importlib.util
import json
from typing import Any

import pytest

from tests.tpu_compiler import compile_for_tpus

TOPOLOGIES = ("v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2")
LONG = [pytest.param(each, TOPOLOGIES, marks=pytest.mark.chaos) for each in (512, 1024, 2048)]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu exists for Linux x86-64 alone"
)


def compiled(
    *wanted: tuple[str, dict[str, Any]], topologies: tuple[str, ...] = TOPOLOGIES
) -> dict[str, list[str]]:
    """The names of the kernels in programs of a module each, for each topology."""
    printed = compile_for_tpus("tests.kernels.alone_program", json.dumps(wanted), *topologies)
    found: dict[str, list[str]] = json.loads(printed.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("length", "topologies"), [(128, TOPOLOGIES), (1024, TOPOLOGIES[1:2]), *LONG]
)
def test_forward_and_backward_kernels_of_attention_compile(
    length: int, topologies: tuple[str, ...]
) -> None:
    """At 1,024 tokens the backward one has two tiles of queries. Of few queries it is another."""
    heads = {"batch": 2, "length": length, "heads": 2, "columns": 64}
    attention = heads | {"dtype": "bfloat16", "rate": 0.1}
    few = attention | {"queries": round(0.15 * length) + 1}
    expected = ["attention_backward", "attention_forward"]
    found = compiled(("attention", attention), ("attention", few), topologies=topologies)
    assert found == dict.fromkeys(topologies, expected)


@pytest.mark.parametrize(
    ("length", "width", "dtype"),
    [
        (1, 768, "bfloat16"),  # [CLS] alone, as a classifier reads the last layer
        (77, 768, "bfloat16"),
        pytest.param(512, 2048, "float32", marks=pytest.mark.chaos),
        pytest.param(1000, 1024, "bfloat16", marks=pytest.mark.chaos),
        pytest.param(4096, 768, "bfloat16", marks=pytest.mark.chaos),
    ],
)
def test_forward_and_backward_kernels_of_the_rest_of_a_layer_compile(
    length: int, width: int, dtype: str
) -> None:
    """LayerNorm with dropout and without, and GELU's gradient in the dtype it is chosen for."""
    numbers = {"width": width, "dtype": dtype}
    tokens = numbers | {"batch": 2, "length": length}
    wanted = [("norm", tokens | {"rate": rate}) for rate in (0.0, 0.1)]
    if dtype == "bfloat16":
        wanted.append(("gelu_product", numbers | {"rows": 2 * length, "inner": 4 * width}))
    expected = ["gelu_product"] * (dtype == "bfloat16") + ["norm_backward", "norm_forward"]
    assert compiled(*wanted) == dict.fromkeys(TOPOLOGIES, expected)


@pytest.mark.parametrize(
    ("rows", "hidden", "pieces", "dtype"),
    [
        (77, 768, 7648, "bfloat16"),  # of four devices each: no multiple of 128
        (12, 64, 256, "float32"),
        # As many rows as fit, of one group and of several, of columns that fill no register.
        pytest.param(1232, 1024, 30592, "bfloat16", marks=pytest.mark.chaos),
        pytest.param(5000, 312, 30592, "float32", marks=pytest.mark.chaos),
        pytest.param(5000, 2048, 119552, "bfloat16", marks=pytest.mark.chaos),
        # The widest that `auto` chooses them for.
        pytest.param(1232, 2304, 30592, "bfloat16", marks=pytest.mark.chaos),
        pytest.param(1232, 1920, 30592, "float32", marks=pytest.mark.chaos),
    ],
)
def test_both_kernels_of_the_loss_compile(rows: int, hidden: int, pieces: int, dtype: str) -> None:
    sizes = {"rows": rows, "hidden": hidden, "pieces": pieces, "dtype": dtype}
    expected = ["cross_entropy_backward", "cross_entropy_forward"]
    assert compiled(("cross_entropy", sizes)) == dict.fromkeys(TOPOLOGIES, expected)
