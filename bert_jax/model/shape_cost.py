"""How much computation compiling for one more shape is worth, roughly."""

from typing import Final, NamedTuple

import jax
from jax.sharding import Mesh

from bert_jax.data.cores import available_cores
from bert_jax.model.config import Architecture
from bert_jax.model.flops import TRAINING, forward_flops
from bert_jax.parallel.accelerators import peak_flops

# Seconds to compile for rows of one length: at once, and for each layer. On a CPU as measured with
# MiniLM on two cores, where a forward pass over scanned layers compiles as fast for twelve as for
# six; on accelerators what the compiler for TPUs takes on as many, of layers that are unrolled.
_CPU_STEP: Final = (1.5, 0.9)
_CPU_FORWARD: Final = (1.0, 0.1)
_ACCELERATOR_STEP: Final = (18.0, 3.6)
_ACCELERATOR_FORWARD: Final = (6.0, 1.2)  # a third, as of the FLOPs
# FLOP/s of a core in a step, and the share of its peak that an accelerator reaches.
_CORE_FLOPS: Final = 60e9
_SHARE_OF_PEAK: Final = 0.3
_UNKNOWN_PEAK: Final = 100e12  # of an accelerator


class ShapeCost(NamedTuple):
    """What a program costs."""

    program: float  # positions of rows that are computed in the time of a compilation
    passes: int = 1  # how often every row is computed


def training_cost(
    architecture: Architecture, mesh: Mesh, *, max_length: int, epochs: int
) -> ShapeCost:
    """Returns the cost of a shape of a fine-tuning run's batches; wrong by half costs seconds."""
    flops = TRAINING * forward_flops(architecture, seq_length=max_length) / max_length
    seconds = _CPU_STEP if _on_cpu(mesh) else _ACCELERATOR_STEP
    return ShapeCost(_seconds(architecture, seconds) * _speed(mesh) / flops, epochs)


def inference_cost(
    architecture: Architecture, mesh: Mesh, *, max_length: int, passes: int = 1
) -> ShapeCost:
    """Returns the cost of a length of a forward pass; a run computes each row `passes` times."""
    flops = forward_flops(architecture, seq_length=max_length) / max_length
    seconds = _CPU_FORWARD if _on_cpu(mesh) else _ACCELERATOR_FORWARD
    return ShapeCost(_seconds(architecture, seconds) * _speed(mesh) / flops, passes)


def _seconds(architecture: Architecture, program: tuple[float, float]) -> float:
    once, layer = program
    return once + layer * architecture.num_hidden_layers


def _on_cpu(mesh: Mesh) -> bool:
    return mesh.devices.flat[0].platform == "cpu"


def _speed(mesh: Mesh) -> float:
    """Returns the FLOP/s of all devices: on every host the same, as the shapes must be."""
    if _on_cpu(mesh):
        return _CORE_FLOPS * (available_cores() if jax.process_count() == 1 else mesh.size)
    return (peak_flops(mesh.devices.flat[0]) or _UNKNOWN_PEAK) * _SHARE_OF_PEAK * mesh.size
