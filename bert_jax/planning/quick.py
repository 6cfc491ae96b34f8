"""The quick form of a plan: shallow programs stand for one that takes minutes to compile."""

from __future__ import annotations

from typing import Final

from bert_jax.model.config import resolve_architecture
from bert_jax.model.execution import default_unroll
from bert_jax.parallel.topology import TpuTopology
from bert_jax.planning.compiled_step import CompiledStep
from bert_jax.planning.compiler import Compiler, compiled_step, compiled_together, kept_step
from bert_jax.planning.extrapolation import COMPILED_DEPTHS, extrapolated
from bert_jax.planning.request import CompileRequest

# Too few, of `base` at 512 tokens on v5e:4x4 against its exact program, docs/planning.md.
CYCLES_OFF: Final = "4%"
MEMORY_OFF: Final = "1%"
NOTE: Final = (
    f"quick: figures of {{layers}} layers from programs of {COMPILED_DEPTHS[0]} and "
    f"{COMPILED_DEPTHS[1]}; seen {CYCLES_OFF} off in cycles and {MEMORY_OFF} in memory; "
    f"--exact compiles the run's own program, in minutes"
)


def spared_layers(request: CompileRequest) -> int | None:
    """Returns how many layers a program has that is too deep to compile quickly; None: it is not.

    A scan over layers compiles as quickly as one of them.
    """
    section = request.model
    depth = resolve_architecture(section, vocab_size=request.vocab_size).num_hidden_layers
    unroll = section.execution.unroll or default_unroll(depth, on_tpu=True)
    return depth if unroll >= depth > COMPILED_DEPTHS[1] else None


def quick_step(
    request: CompileRequest, topology: TpuTopology, *, title: str, compiler: Compiler
) -> CompiledStep:
    """Returns a step, extrapolated where its own program has not been compiled before.

    Args:
        request: for the step as the run has it.
        topology: of it.
        title: of it, for the progress line.
        compiler: what to show and keep.

    Raises:
        UserError: no libtpu, or topology, mesh, batch and model do not fit together.
        RunStopped: the compiler failed.
    """
    layers = spared_layers(request)
    if layers is None:
        return compiled_step(request, title=title, compiler=compiler)
    if (exact := kept_step(request, title=title, compiler=compiler)) is not None:
        return exact
    shallow, deep = compiled_together(
        [with_layers(request, depth) for depth in COMPILED_DEPTHS],
        title=f"{title}, of {COMPILED_DEPTHS[0]} and of {COMPILED_DEPTHS[1]} layers",
        compiler=compiler,
    )
    accelerator = topology.accelerator
    return extrapolated(
        shallow,
        deep,
        layers=layers,
        hbm_bytes=accelerator.hbm_bytes // accelerator.devices_per_chip,
        clock_hz=accelerator.clock_hz,
    )


def with_layers(request: CompileRequest, depth: int) -> CompileRequest:
    """Returns the request for so many layers, all unrolled."""
    model = request.model
    changes = {
        "architecture": model.architecture.model_copy(update={"num_hidden_layers": depth}),
        "execution": model.execution.model_copy(update={"unroll": None}),
    }
    return request.model_copy(update={"model": model.model_copy(update=changes)})
