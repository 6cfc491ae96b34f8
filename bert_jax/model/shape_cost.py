"""Estimates the compile time of an additional batch shape, as a number of computed tokens."""

from typing import Final, NamedTuple

import jax
from jax.sharding import Mesh

from bert_jax.data.worker_process import available_cores
from bert_jax.model.architecture import TRAINING, EncoderArchitecture
from bert_jax.parallel.accelerators import peak_flops

# Seconds to compile a program for one length: a constant, and seconds per layer. The CPU values
# were measured with MiniLM on two cores. There, layers are scanned, so compiling a forward pass
# hardly depends on their number. The accelerator values were measured with the TPU compiler on two
# cores and unrolled layers.
_CPU_STEP: Final = (1.5, 0.9)
_CPU_FORWARD: Final = (1.0, 0.1)
_ACCELERATOR_STEP: Final = (18.0, 3.6)
_ACCELERATOR_FORWARD: Final = (6.0, 1.2)  # a third of a step, as for FLOPs
# FLOP/s of a CPU core in a step, and the share of peak FLOP/s that an accelerator reaches.
_CORE_FLOPS: Final = 60e9
_SHARE_OF_PEAK: Final = 0.3
_UNKNOWN_PEAK: Final = 100e12  # assumed peak FLOP/s of an unknown accelerator


class ShapeCost(NamedTuple):
    """The cost of compiling a program for one more shape."""

    program: float  # tokens that are computed in the time of one compilation
    passes: int = 1  # number of times that each row is computed


def training_cost(
    architecture: EncoderArchitecture, mesh: Mesh, *, max_length: int, epochs: int
) -> ShapeCost:
    """Returns the cost of compiling a train step. An error of 50% costs a run only seconds."""
    flops = TRAINING * architecture.forward_flops(seq_length=max_length) / max_length
    seconds = _CPU_STEP if _on_cpu(mesh) else _ACCELERATOR_STEP
    return ShapeCost(_seconds(architecture, seconds) * _speed(mesh) / flops, epochs)


def inference_cost(
    architecture: EncoderArchitecture, mesh: Mesh, *, max_length: int, passes: int = 1
) -> ShapeCost:
    """Returns the cost of compiling a forward pass. Each row is computed `passes` times."""
    flops = architecture.forward_flops(seq_length=max_length) / max_length
    seconds = _CPU_FORWARD if _on_cpu(mesh) else _ACCELERATOR_FORWARD
    return ShapeCost(_seconds(architecture, seconds) * _speed(mesh) / flops, passes)


def _seconds(architecture: EncoderArchitecture, program: tuple[float, float]) -> float:
    once, layer = program
    return once + layer * architecture.num_hidden_layers


def _on_cpu(mesh: Mesh) -> bool:
    return mesh.devices.flat[0].platform == "cpu"


def _speed(mesh: Mesh) -> float:
    """Returns the FLOP/s of all devices. Equal on all hosts, so that they choose equal shapes."""
    if _on_cpu(mesh):
        return _CORE_FLOPS * (available_cores() if jax.process_count() == 1 else mesh.size)
    return (peak_flops(mesh.devices.flat[0]) or _UNKNOWN_PEAK) * _SHARE_OF_PEAK * mesh.size
