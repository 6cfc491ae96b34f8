"""What the compiler says of one step: memory, cycles, collectives; kept as JSON."""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import jax
import pydantic

from bert_jax.planning.collectives import Collective, DevicePlacement, find_collectives
from bert_jax.planning.cycles import Cycles, count_cycles, kernels_called
from bert_jax.planning.execution import Program
from bert_jax.planning.hlo import parse_hlo
from bert_jax.planning.kernel_schedule import KernelSchedule, read_schedules, written_to
from bert_jax.planning.kernels_alone import as_called
from bert_jax.planning.optimized_text import optimized_text
from bert_jax.planning.program import LoweredStep, lower_step, open_topology, placement_of
from bert_jax.planning.refusal import memory_refused
from bert_jax.planning.request import CompileRequest
from bert_jax.planning.work import Work, count_work


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one JAX device."""

    parameters: int  # as laid out on the mesh
    # The same of moments and counters; of an evaluation, all of the trained state that lies beside.
    optimizer: int
    batch: int  # the rest of what the step is given
    temporaries: int  # the compiler's figure: activations, gradients, and what it copies
    program: int  # code
    # The compiler's own figure: all that it lays out in HBM beside the code; of an evaluation with
    # the trained state.
    peak: int


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class CompiledStep:
    """One step, compiled; or why it cannot be."""

    rows: int  # of a batch
    useful_flops: float  # of one step, all chips: the products of the mathematics
    memory: Memory | None = None  # None where the program does not fit and the compiler gave up
    cycles: Cycles | None = None  # None then too
    work: Work | None = None  # None then too
    collectives: tuple[Collective, ...] = ()  # empty then
    needed_bytes: int | None = None  # then what the compiler says it needs of a device's HBM
    available_bytes: int | None = None  # and what it says there is
    compile_seconds: float  # that compiling took
    copy_bytes: int = 0  # of a train step: of the parameters' copy that evaluations have
    quick: bool = False  # whether cycles of operations are estimated too, see `scheduled`


STEP: Final = pydantic.TypeAdapter(CompiledStep)


def compile_step(request: CompileRequest) -> CompiledStep:
    """Compiles a step for its topology and reads the result. Give it a process of its own.

    Raises:
        UserError: topology, mesh, batch and model do not fit together.
    """
    with tempfile.TemporaryDirectory(prefix="bert_jax_schedules_") as folder:
        with written_to(Path(folder)):
            topology, mesh = open_topology(request)
        step = lower_step(request, mesh)
        started = time.perf_counter()
        try:
            compiled = step.lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            return refused_step(step, error, seconds=time.perf_counter() - started)
        seconds = time.perf_counter() - started
        program = Program.of(parse_hlo(optimized_text(compiled, name=step.name)))
        schedules = read_schedules(
            Path(folder), kernels_called(program), accelerator=topology.accelerator.name
        )
    memory, placement = _memory(step, compiled), placement_of(topology, mesh)
    available = topology.accelerator.device_hbm_bytes
    if memory.peak > available:  # by what lies beside the step, of which the compiler knows nothing
        return too_large(step, memory.peak, available, seconds=seconds)
    return read_step(step, program, schedules, memory=memory, placement=placement, seconds=seconds)


def read_step(
    step: LoweredStep,
    program: Program,
    schedules: Mapping[str, KernelSchedule],
    *,
    memory: Memory,
    placement: DevicePlacement,
    seconds: float,
) -> CompiledStep:
    """Returns a step that fits, with what its program says.

    `schedules` of kernels are by the name of their instruction; compiling took `seconds`.
    """
    accelerator = placement.topology.accelerator
    bytes_per_cycle = accelerator.bytes_per_cycle
    schedules = as_called(schedules, program, accelerator)
    return CompiledStep(
        rows=step.rows,
        useful_flops=step.flops,
        memory=memory,
        cycles=count_cycles(program, bytes_per_cycle=bytes_per_cycle, schedules=schedules),
        work=count_work(program, schedules),
        collectives=tuple(find_collectives(program, placement)),
        compile_seconds=seconds,
        copy_bytes=step.copy_bytes,
    )


def refused_step(step: LoweredStep, error: RuntimeError, *, seconds: float) -> CompiledStep:
    """Returns a step that needs more memory than there is.

    Raises:
        RuntimeError: `error`, which says something else.
    """
    if (sizes := memory_refused(str(error))) is None:
        raise error
    needed, available = sizes
    return too_large(step, needed + step.beside_bytes, available, seconds=seconds)


def too_large(step: LoweredStep, needed: int, available: int, *, seconds: float) -> CompiledStep:
    """Returns a step that needs so many bytes of a device's HBM, and those that there are."""
    return CompiledStep(
        rows=step.rows,
        useful_flops=step.flops,
        needed_bytes=needed,
        available_bytes=available,
        compile_seconds=seconds,
    )


def _memory(step: LoweredStep, compiled: jax.stages.Compiled) -> Memory:
    found = compiled.memory_analysis()
    assert found is not None  # only some backends have none
    held = step.parameter_bytes + step.optimizer_bytes
    given = found.argument_size_in_bytes
    # Its `peak_memory_in_bytes` holds buffers on the chip too, and less than the temporaries, which
    # are reserved as a whole.
    results = found.output_size_in_bytes - found.alias_size_in_bytes  # that overwrite nothing
    return Memory(
        parameters=step.parameter_bytes,
        optimizer=step.optimizer_bytes + step.beside_bytes,
        batch=max(given - held, 0),
        temporaries=found.temp_size_in_bytes,
        program=found.generated_code_size_in_bytes,
        peak=given + found.temp_size_in_bytes + results + step.beside_bytes,
    )
