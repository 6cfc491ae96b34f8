"""Compiled steps have only the allowed collectives, and each kind's bytes are within bounds."""

import collections
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from rich.console import Console

from bert_jax.parallel.mesh import make_mesh, process_share
from bert_jax.parallel.section import MeshSection
from bert_jax.parallel.topology import parse_topology
from bert_jax.planning import planning
from bert_jax.planning.compilation.collectives import DCN, ICI
from bert_jax.planning.compilation.lowering import open_devices
from bert_jax.planning.compilation.step import CompiledStep
from bert_jax.verbs.plan import plan
from tests.compiler_pair import compiles_for_tpus
from tests.planning.plans import LAYERS, LENGTH, PREDICTIONS, run

pytestmark = [pytest.mark.slow, compiles_for_tpus]

WIDTH, ROWS, VOCABULARY = 128, 32, 1024
BF16, F32 = 2, 4
SPLIT = 0.95  # minimum share of parameter bytes that are sharded
FIGURES = 4096  # bytes of all losses, counts and norms

Kind: TypeAlias = tuple[str, tuple[str, ...], str]  # kind, mesh axes, dtype
Bounds: TypeAlias = tuple[float, float]  # minimum and maximum bytes of one step on one device


SIZES = (
    f"model.architecture.hidden_size={WIDTH}",
    "model.architecture.num_attention_heads=4",
    f"model.architecture.intermediate_size={2 * WIDTH}",
    f"train.phases.0.batch_size={ROWS}",
    "train.evaluation=null",
    "model.execution.gradient_dtype=float32",
)


def compiled(*overrides: str) -> CompiledStep:
    """Compiles the train step of a small model for one or more slices of four v5e chips."""
    config = run(*SIZES, *overrides, layers=LAYERS)
    (found,) = plan(config, ["v5e:2x2"], vocab_size=VOCABULARY, console=Console(quiet=True))
    return found.phases[0].train


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses an empty cache. Skips code generation, which does not affect collectives."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(planning, "SHALLOW", LAYERS - 1)


def check(step: CompiledStep, budget: Mapping[Kind, Bounds]) -> None:
    """Asserts that a step has only the budget's collectives, with bytes within its bounds."""
    totals: collections.Counter[Kind] = collections.Counter()
    named: dict[Kind, list[str]] = collections.defaultdict(list)
    for one in step.collectives:
        key = one.kind, one.axes, "+".join(one.dtypes)
        totals[key] += one.bytes * one.trips
        named[key].append(f"{one.trips} × {one.bytes:,} bytes of {one.name}")
    foreign = {key: named[key] for key in totals if key not in budget}
    assert not foreign, foreign
    for key, (least, most) in budget.items():
        assert least <= totals[key] <= most, (key, totals[key], (least, most), named[key])


def parameters(step: CompiledStep) -> int:
    """Returns the bytes of a device's float32 parameters between steps."""
    assert step.memory is not None
    return step.memory.parameters


def gathers(size: int, *, tensor: int = 1) -> dict[Kind, Bounds]:
    """Returns bounds for gathers of kernels in bfloat16 and of position embeddings in float32.

    Lookup and decoder share one gather of the vocabulary's table. XLA may gather the FFN's second
    kernels again to recompute GELU. `size` is the number of bytes of all parameters.
    """
    positions = LENGTH * WIDTH * F32
    again = LAYERS * 2 * WIDTH * WIDTH * BF16 // tensor
    return {
        ("all-gather", ("data",), "f32"): (positions, positions + (1 - SPLIT) * size),
        ("all-gather", ("data",), "bf16"): ((SPLIT * size - positions) / 2, size / 2 + again),
    }


def round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def activations(rows: int, width: int = F32) -> int:
    """Returns the bytes of the hidden states of `rows` rows."""
    return rows * LENGTH * WIDTH * width


@pytest.mark.parametrize(
    ("topology", "settings", "copies", "block"),
    [
        ("v5e:4x8", {}, 1, (4, 8, 1)),
        ("v5e:8x8", {}, 4, (4, 4, 1)),
        ("v5e:8x8", {"tensor": 2}, 4, (4, 4, 1)),
        ("v5e:8x8", {"fsdp": 4}, 1, (8, 8, 1)),
        ("v5e:8x8", {"slices": 2}, 8, (4, 4, 1)),
        ("v5e:8x8", {"copies": 1}, 1, (8, 8, 1)),
        ("v6e:16x16", {}, 16, (4, 4, 1)),
        ("v6e:16x16", {"copies": 4}, 4, (8, 8, 1)),
        ("v5p:4x4x4", {}, 4, (4, 2, 2)),
    ],
)
def test_the_chips_of_a_copy_are_a_block(
    topology: str, settings: dict[str, int], copies: int, block: tuple[int, ...]
) -> None:
    section = MeshSection.model_validate(settings)
    mesh = make_mesh(section, open_devices(parse_topology(topology), slices=section.slices))
    assert mesh.shape["copy"] == copies
    for of_copy in mesh.devices.reshape(copies, -1):
        assert len({getattr(device, "slice_index", 0) for device in of_copy}) == 1
        places = np.array([device.coords for device in of_copy])
        assert tuple(places.max(axis=0) - places.min(axis=0) + 1) == block
    # The sum between copies connects chips at the same place of their blocks.
    inside = mesh.devices[0, 1].item(0).coords - np.array(mesh.devices[0, 0].item(0).coords)
    for of_copy in mesh.devices:
        assert (of_copy[1].item(0).coords - np.array(of_copy[0].item(0).coords) == inside).all()
    for process in range(len({device.process_index for device in mesh.devices.flat})):
        assert process_share(mesh, process_index=process).count > 1


def test_slices_exchange_only_gradient_shares() -> None:
    step = compiled("mesh.slices=2")
    size = 4 * parameters(step)
    vectors = (1 - SPLIT) * size + FIGURES
    check(
        step,
        gathers(size)
        | {
            ("reduce-scatter", ("data",), "f32"): (SPLIT * size, size),
            ("all-reduce", ("copy",), "f32"): (SPLIT * size / 4, size / 4 + vectors),
            ("all-reduce", ("data",), "f32"): (0, vectors),
        },
    )
    assert {one.link for one in step.collectives if one.axes == ("copy",)} == {DCN}
    assert {one.link for one in step.collectives if one.axes == ("data",)} == {ICI}


@pytest.mark.parametrize("attention", ["auto", pytest.param("xla", marks=pytest.mark.chaos)])
def test_tensor_parallelism_sums_two_activations_per_block(attention: str) -> None:
    """With `auto`, the step uses kernels for attention, LayerNorm and GELU's gradient."""
    step = compiled("mesh.tensor=2", f"model.execution.attention={attention}")
    assert step.cycles is not None
    kernels = sum(kernel.calls for kernel in step.cycles.kernels)
    of_loss = 2
    assert kernels == LAYERS * (7 if attention == "auto" else 5) + of_loss
    size, hidden = 2 * parameters(step), activations(ROWS // 2, BF16)
    # The last layer computes queries, attention's output and the FFN only for tokens that heads
    # read, padded to a multiple of 16.
    read = (ROWS // 2) * round_up(PREDICTIONS + 1, 16) * WIDTH * BF16
    blocks = 2 * 2 * (LAYERS - 1) * hidden + hidden + 2 * 2 * read
    head = (ROWS // 2) * PREDICTIONS * WIDTH * BF16
    split = hidden + blocks + head  # `hidden`: embeddings, because devices have half of the words
    whole = head if importlib.metadata.version("libtpu").startswith("0.0.42.") else 0
    check(
        step,
        gathers(size, tensor=2)
        | {
            ("reduce-scatter", ("data",), "f32"): (SPLIT * size, size),
            ("all-reduce", ("data",), "f32"): (0, (1 - SPLIT) * size + FIGURES),
            # The two columns of the next-sentence head's kernel are not sharded.
            ("all-gather", ("tensor",), "f32"): (0, FIGURES),
            ("all-reduce", ("tensor",), "bf16"): (split - whole, split - whole),
            # libtpu 0.0.42 sums the tokens of the heads over all four devices.
            ("all-reduce", ("data", "tensor"), "bf16"): (whole, whole),
            # The devices all-reduce the maximum and sum of the softmax over the vocabulary.
            ("all-reduce", ("tensor",), "f32"): (0, 4 * FIGURES),
            ("all-reduce", ("data", "tensor"), "f32"): (0, FIGURES),
            ("collective-permute", (), "f32"): (0, FIGURES),
        },
    )


def test_gradients_are_summed_in_bfloat16() -> None:
    step = compiled("mesh.data=4", "model.execution.gradient_dtype=auto")
    sums = [one for one in step.collectives if one.kind in ("all-reduce", "reduce-scatter")]
    assert ("bf16",) in {one.dtypes for one in sums}
    assert sum(one.bytes for one in sums) < 0.6 * 4 * parameters(step)


@pytest.mark.chaos
def test_fsdp_gathers_bfloat16_and_sums_float32() -> None:
    step = compiled("mesh.fsdp=4")
    assert step.memory is not None
    whole = 4 * parameters(step)  # an upper bound, because small parameters are replicated
    gathered = sum(one.bytes * one.trips for one in step.collectives if one.kind == "all-gather")
    assert gathered < whole
    summed = [one for one in step.collectives if one.kind in ("all-reduce", "reduce-scatter")]
    large = [one for one in summed if one.bytes > FIGURES]
    assert {one.dtypes for one in large} == {("f32",)}
    assert {one.axes for one in step.collectives if one.bytes > FIGURES} == {("fsdp",)}


@pytest.mark.chaos
@pytest.mark.parametrize("accumulation", [2, 4])
def test_accumulation_moves_no_activation(accumulation: int) -> None:
    step = compiled("mesh.data=4", f"train.phases.0.accumulation={accumulation}")
    assert {one.kind for one in step.collectives} <= {"all-reduce", "reduce-scatter", "all-gather"}
    sums = [one for one in step.collectives if one.kind in ("all-reduce", "reduce-scatter")]
    summed = sum(one.bytes * one.trips for one in sums)
    # XLA sums most gradients once per microbatch, not once per step.
    assert 0.6 < summed / (accumulation * 4 * parameters(step)) <= 1
