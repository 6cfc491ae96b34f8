"""What compiling for a shape and computing with it take on the devices of a run, roughly."""

from typing import Final, NamedTuple

import jax
from jax.sharding import Mesh

from bert_jax.data.cores import available_cores
from bert_jax.model.config import Architecture
from bert_jax.model.flops import forward_flops, train_flops
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
    """What programs and padding cost."""

    program: float  # seconds to compile for rows of one length
    position: float  # seconds to compute one position of one row
    passes: int  # how often every row is computed


def training_cost(
    architecture: Architecture, mesh: Mesh, *, max_length: int, epochs: int
) -> ShapeCost:
    """Returns what decides how many shapes the batches of a fine-tuning run have.

    Estimates: being wrong by half costs seconds.
    """
    flops = train_flops(architecture, seq_length=max_length) / max_length
    program = _CPU_STEP if _on_cpu(mesh) else _ACCELERATOR_STEP
    return _cost(architecture, program, position=flops / _speed(mesh), passes=epochs)


def inference_cost(
    architecture: Architecture, mesh: Mesh, *, max_length: int, passes: int = 1
) -> ShapeCost:
    """Returns what decides how many lengths rows are padded to for a forward pass.

    Every row will come `passes` times, as in a run that evaluates after every epoch.
    """
    flops = forward_flops(architecture, seq_length=max_length) / max_length
    program = _CPU_FORWARD if _on_cpu(mesh) else _ACCELERATOR_FORWARD
    return _cost(architecture, program, position=flops / _speed(mesh), passes=passes)


def _cost(
    architecture: Architecture, program: tuple[float, float], *, position: float, passes: int
) -> ShapeCost:
    once, layer = program
    return ShapeCost(once + layer * architecture.num_hidden_layers, position, passes)


def _on_cpu(mesh: Mesh) -> bool:
    return mesh.devices.flat[0].platform == "cpu"


def _speed(mesh: Mesh) -> float:
    """Returns the FLOP/s of all devices: on every host the same, as the shapes must be."""
    if _on_cpu(mesh):
        return _CORE_FLOPS * (available_cores() if jax.process_count() == 1 else mesh.size)
    return (peak_flops(mesh.devices.flat[0]) or _UNKNOWN_PEAK) * _SHARE_OF_PEAK * mesh.size
