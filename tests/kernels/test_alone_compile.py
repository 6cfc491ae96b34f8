"""The kernels compile for every generation that `auto` chooses them on."""

import importlib.util
import json
from typing import Any

import pytest

from tests.tpu_compiler import compile_for_tpus

# `make chaos` compiles for all four.
FEW = ("v4:2x2x1", "v6e:2x2")
TOPOLOGIES = ("v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2")
KERNELS = {
    "attention": ["attention_backward", "attention_forward"],
    "cross_entropy": ["cross_entropy_backward", "cross_entropy_forward"],
    "gelu_product": ["gelu_product"],
    "norm": ["norm_backward", "norm_forward"],
}
Program = tuple[str, dict[str, Any]]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu exists for Linux x86-64 alone"
)


def attention(length: int) -> list[Program]:
    """From 1,024 tokens on, the backward kernel has two tiles. Few queries have another kernel."""
    heads = {"batch": 2, "length": length, "heads": 2, "columns": 64}
    settings = heads | {"dtype": "bfloat16", "rate": 0.1}
    few = settings | {"queries": round(0.15 * length) + 1}
    return [("attention", settings), ("attention", few)]


def layer(length: int, width: int, dtype: str) -> list[Program]:
    """LayerNorm with dropout and without, and GELU's gradient in the dtype it is chosen for."""
    numbers = {"width": width, "dtype": dtype}
    tokens = numbers | {"batch": 2, "length": length}
    wanted: list[Program] = [("norm", tokens | {"rate": rate}) for rate in (0.0, 0.1)]
    if dtype == "bfloat16":
        wanted.append(("gelu_product", numbers | {"rows": 2 * length, "inner": 4 * width}))
    return wanted


def loss(rows: int, hidden: int, pieces: int, dtype: str) -> list[Program]:
    sizes = {"rows": rows, "hidden": hidden, "pieces": pieces, "dtype": dtype}
    return [("cross_entropy", sizes)]


SHORT = [
    *attention(128),
    *layer(1, 768, "bfloat16"),  # [CLS] alone, as a classifier reads the last layer
    *layer(77, 768, "bfloat16"),
    *loss(77, 768, 7648, "bfloat16"),  # of four devices each: no multiple of 128
    *loss(12, 64, 256, "float32"),
]
LONG = [
    *(attention(length) for length in (512, 1024, 2048)),
    layer(512, 2048, "float32"),
    layer(1000, 1024, "bfloat16"),
    layer(4096, 768, "bfloat16"),
    # As many rows as fit, of one group and of several, of columns that fill no register.
    loss(1232, 1024, 30592, "bfloat16"),
    loss(5000, 312, 30592, "float32"),
    loss(5000, 2048, 119552, "bfloat16"),
    # The widest that `auto` chooses them for.
    loss(1232, 2304, 30592, "bfloat16"),
    loss(1232, 1920, 30592, "float32"),
]


@pytest.mark.parametrize(
    ("wanted", "topologies"),
    [
        (SHORT, FEW),
        *(pytest.param(each, TOPOLOGIES, marks=pytest.mark.chaos) for each in (SHORT, *LONG)),
    ],
)
def test_kernels_compile_for_every_generation(
    wanted: list[Program], topologies: tuple[str, ...]
) -> None:
    printed = compile_for_tpus("tests.kernels.alone_program", json.dumps(wanted), *topologies)
    expected = sorted({kernel for name, _ in wanted for kernel in KERNELS[name]})
    assert json.loads(printed.splitlines()[-1]) == dict.fromkeys(topologies, expected)
