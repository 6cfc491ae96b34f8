"""What compiling and computing a fine-tuning step take on the devices of a run, roughly."""

from __future__ import annotations

from typing import Final

from jax.sharding import Mesh

from bert_jax.model.config import Architecture
from bert_jax.model.flops import train_flops
from bert_jax.parallel.accelerators import peak_flops
from bert_jax.pipelines.engines.local import available_cores
from bert_jax.tasks.shape_budget import ShapeCost

# Seconds to compile the step for rows of one length: at once, and for each layer. On a CPU as
# measured with MiniLM on two cores; on accelerators what the compiler for TPUs takes on as many.
_CPU_PROGRAM: Final = (1.5, 0.9)
_ACCELERATOR_PROGRAM: Final = (10.0, 1.5)
# FLOP/s of a core in a step, and the share of its peak that an accelerator reaches.
_CORE_FLOPS: Final = 60e9
_SHARE_OF_PEAK: Final = 0.3
_UNKNOWN_PEAK: Final = 100e12  # of an accelerator


def shape_cost(
    architecture: Architecture, mesh: Mesh, *, max_length: int, epochs: int
) -> ShapeCost:
    """Returns what decides how many shapes the batches of a run have.

    Estimates: being wrong by half costs seconds.

    Args:
        architecture: of the model.
        mesh: the run's devices.
        max_length: positions of its longest rows.
        epochs: of the run.
    """
    device = mesh.devices.flat[0]
    if device.platform == "cpu":
        (once, layer), speed = _CPU_PROGRAM, _CORE_FLOPS * available_cores()
    else:
        (once, layer) = _ACCELERATOR_PROGRAM
        speed = (peak_flops(device) or _UNKNOWN_PEAK) * _SHARE_OF_PEAK * mesh.size
    flops = train_flops(architecture, seq_length=max_length, predictions=0) / max_length
    return ShapeCost(
        program=once + layer * architecture.num_hidden_layers,
        position=flops / speed,
        epochs=epochs,
    )
