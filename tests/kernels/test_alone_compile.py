"""The kernels compile for every TPU generation on which `auto` selects them."""

import json
from typing import Any

import pytest

from tests.compiler_pair import compiles_for_tpus
from tests.tpu_compiler import compile_for_tpus

TOPOLOGIES = ("v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2")
KERNELS = {
    "attention": ["attention_backward", "attention_forward"],
    "cross_entropy": ["cross_entropy_backward", "cross_entropy_forward"],
    "geglu_gradients": ["geglu_gradients"],
    "gelu_product": ["gelu_product"],
    "norm": ["norm_backward", "norm_forward"],
    "pre_norm": ["norm_backward", "norm_forward"],
    "rotary_attention": ["rotary_attention_backward", "rotary_attention_forward"],
}
Program = tuple[str, dict[str, Any]]

pytestmark = [pytest.mark.slow, compiles_for_tpus]


def attention(length: int) -> list[Program]:
    """Returns programs for all queries of a row, and for the queries of masked tokens only."""
    heads = {"batch": 2, "length": length, "heads": 2, "columns": 64}
    settings = heads | {"dtype": "bfloat16", "rate": 0.1}
    few = settings | {"queries": round(0.15 * length) + 1}
    return [("attention", settings), ("attention", few)]


def layer(length: int, width: int, dtype: str) -> list[Program]:
    """Returns LayerNorm with and without dropout and bias; in bfloat16, also GELU and GeGLU."""
    numbers = {"width": width, "dtype": dtype}
    tokens = numbers | {"batch": 2, "length": length}
    wanted: list[Program] = [("norm", tokens | {"rate": rate}) for rate in (0.0, 0.1)]
    wanted.append(("pre_norm", tokens))
    if dtype == "bfloat16":
        rows = numbers | {"rows": 2 * length}
        for form in ("gelu_tanh", "gelu_erf"):
            wanted.append(("gelu_product", rows | {"inner": 4 * width, "activation": form}))
        wanted.append(("geglu_gradients", rows | {"inner": 2 * width + 64}))
    return wanted


def rotary(length: int, window: int | None) -> list[Program]:
    """Returns a program with enough rows for several steps of the grid, which need most VMEM."""
    heads = {"heads": 2, "columns": 64, "window": window, "dtype": "bfloat16"}
    return [("rotary_attention", {"batch": 16, "length": length} | heads)]


def by_distance(length: int, *, heads: int = 2, columns: int = 64, **changes: Any) -> list[Program]:
    """Returns attention by distance, with enough rows for several steps of the grid."""
    sizes = {"batch": 16, "length": length, "heads": heads, "columns": columns}
    settings = sizes | {"dtype": "bfloat16", "rate": 0.1, "distances": True}
    return [("attention", settings | changes)]


def loss(rows: int, hidden: int, pieces: int, dtype: str) -> list[Program]:
    sizes = {"rows": rows, "hidden": hidden, "pieces": pieces, "dtype": dtype}
    return [("cross_entropy", sizes)]


# Rows share a block, and only [CLS] attends, as in the last layer of a classifier.
CLS = {"batch": 8, "length": 512, "heads": 2, "columns": 64, "rate": 0.1, "queries": 1}
FLOAT32 = {"dtype": "float32", "rate": 0.1}
SHORT = [
    *attention(128),
    ("attention", CLS | {"dtype": "bfloat16"}),
    # The longest rows of three heads in float32.
    ("attention", {"batch": 8, "length": 256, "heads": 3, "columns": 64} | FLOAT32),
    *layer(1, 768, "bfloat16"),  # only [CLS], as in the last layer of a classifier
    *layer(77, 768, "bfloat16"),
    *rotary(77, 128),
    *loss(77, 768, 7648, "bfloat16"),  # a quarter of the vocabulary, not a multiple of 128
    *loss(12, 64, 256, "float32"),
]
LONG = [
    *(
        [("attention", shape | {"dtype": dtype})]
        for shape in (CLS, CLS | {"columns": 16}, CLS | {"heads": 3, "length": 256})
        for dtype in ("bfloat16", "float32")
    ),
    # The longest rows of one and of two heads in float32.
    *(
        [("attention", {"batch": 8} | heads | FLOAT32)]
        for heads in (
            {"heads": 1, "columns": 64, "length": 512},
            {"heads": 2, "columns": 80, "length": 384},
        )
    ),
    # The longest rows of blocks wider than 128 lanes.
    *(
        [("attention", wide | {"batch": 8, "dtype": "bfloat16", "rate": 0.1})]
        for wide in (
            {"heads": 5, "columns": 64, "length": 384},
            {"heads": 6, "columns": 96, "length": 256},
            {"heads": 7, "columns": 112, "length": 128},
        )
    ),
    *(attention(length) for length in (512, 1024, 2048)),  # one tile backward, then several
    *(rotary(1024, window) for window in (128, None)),
    layer(512, 2048, "float32"),
    layer(1000, 1024, "bfloat16"),
    layer(4096, 768, "bfloat16"),
    # The maximum rows of one group, and rows for several groups, with partly filled registers.
    loss(1232, 1024, 30592, "bfloat16"),
    loss(5000, 312, 30592, "float32"),
    loss(5000, 2048, 119552, "bfloat16"),
    # The widest model for which `auto` selects the kernels.
    loss(1232, 2304, 30592, "bfloat16"),
    loss(1232, 1280, 30592, "float32"),
]


NARROW: dict[str, Any] = {"width": 768, "dtype": "bfloat16"}
# One program for each form of each kernel, with the sizes of pretraining.
PRETRAINING: list[Program] = [
    attention(128)[0],
    attention(512)[0],
    ("norm", NARROW | {"batch": 2, "length": 512, "rate": 0.1}),
    ("pre_norm", NARROW | {"batch": 2, "length": 1024}),
    ("gelu_product", NARROW | {"rows": 1024, "inner": 3072, "activation": "gelu_tanh"}),
    ("gelu_product", NARROW | {"rows": 1024, "inner": 3072, "activation": "gelu_erf"}),
    ("geglu_gradients", NARROW | {"rows": 1024, "inner": 1152}),
    *loss(1232, 768, 30592, "bfloat16"),
    *rotary(1024, 128),
    *rotary(1024, None),
    *by_distance(512),
]


def compiled(wanted: dict[str, list[Program]]) -> dict[str, list[str]]:
    """Returns the names of the kernels in the programs of each topology."""
    printed = compile_for_tpus("tests.kernels.alone_program", json.dumps(wanted))
    found: dict[str, list[str]] = json.loads(printed.splitlines()[-1])
    return found


def expected(wanted: list[Program]) -> set[str]:
    return {kernel for name, _ in wanted for kernel in KERNELS[name]}


def test_kernels_compile_alone_and_in_a_fine_tuning_step() -> None:
    """The last layer of a classifier computes only [CLS], with separate kernels."""
    # v4 has the least VMEM. `make chaos` compiles for all four topologies.
    found = compiled({"v4:2x2x1": SHORT, "v5e:2x2": [("finetuning", {})]})
    assert set(found["v4:2x2x1"]) == expected(SHORT)
    in_step = found["v5e:2x2"]
    assert set(in_step) == {*KERNELS["attention"], *KERNELS["gelu_product"], *KERNELS["norm"]}
    assert in_step.count("attention_forward") == in_step.count("attention_backward") == 2


@pytest.mark.slow
def test_every_kernel_of_pretraining_compiles_with_the_hosts_pair() -> None:
    topologies = ("v5e:2x2", "v6e:2x2")
    found = compiled(dict.fromkeys(topologies, PRETRAINING))
    every = sorted(kernel for name, _ in PRETRAINING for kernel in KERNELS[name])
    assert found == dict.fromkeys(topologies, every)


@pytest.mark.chaos
@pytest.mark.parametrize("wanted", [SHORT, *LONG])
def test_kernels_compile_for_every_generation(wanted: list[Program]) -> None:
    found = compiled(dict.fromkeys(TOPOLOGIES, wanted))
    assert {name: set(kernels) for name, kernels in found.items()} == dict.fromkeys(
        TOPOLOGIES, expected(wanted)
    )


@pytest.mark.chaos
@pytest.mark.parametrize("window", [128, None])
def test_rotary_attention_compiles_for_long_rows(window: int | None) -> None:
    """Long rows do not fit into the VMEM of v4, so `auto` selects plain JAX there."""
    topologies = TOPOLOGIES[1:]
    wanted = [program for length in (2048, 8192) for program in rotary(length, window)]
    found = compiled(dict.fromkeys(topologies, wanted))
    assert {name: set(kernels) for name, kernels in found.items()} == dict.fromkeys(
        topologies, expected(wanted)
    )


@pytest.mark.chaos
def test_attention_by_distance_compiles() -> None:
    """v4 cannot rotate each row by its own number, so `auto` selects plain JAX there."""
    wanted = [
        *(by_distance(length)[0] for length in (128, 200, 1024)),
        *by_distance(1024, causal=True),
        *by_distance(512, dtype="float32"),
        *by_distance(512, columns=128),
        *by_distance(512, heads=4, columns=32),
        *by_distance(384, heads=5),
        *by_distance(128, heads=7, columns=72),
        *by_distance(512, heads=3, columns=20),
    ]
    found = compiled(dict.fromkeys(TOPOLOGIES[1:], wanted))
    assert {name: set(kernels) for name, kernels in found.items()} == dict.fromkeys(
        TOPOLOGIES[1:], expected(wanted)
    )
