"""One step of a run, compiled for a TPU topology: memory, cycles, work, collectives.

An exact step has the code that the run would execute. A quick step leaves code generation away:
memory and collectives are the compiler's, and cycles are estimated by `op_cycles`. The quick form
reads files whose form belongs to one version of libtpu, and knows when it meets another.
"""

import importlib.metadata
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import jax
import pydantic

from bert_jax.planning.compilation.collectives import Collective, find_collectives
from bert_jax.planning.compilation.compiler_files import (
    Scheduled,
    compile_exactly,
    compile_quickly,
)
from bert_jax.planning.compilation.cycles import Cycles, count_cycles, kernels_called
from bert_jax.planning.compilation.execution import Program
from bert_jax.planning.compilation.hlo import parse_hlo
from bert_jax.planning.compilation.kernel_schedule import (
    KernelSchedule,
    read_schedules,
    written_to,
)
from bert_jax.planning.compilation.kernels_alone import as_called, by_call, schedules_alone
from bert_jax.planning.compilation.lowering import (
    LoweredStep,
    lower_step,
    open_topology,
    placement_of,
)
from bert_jax.planning.compilation.op_cycles import fitted, with_estimates
from bert_jax.planning.compilation.refusal import memory_refused
from bert_jax.planning.compilation.work import Work, count_work
from bert_jax.planning.request import CompileRequest


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one JAX device."""

    parameters: int  # as laid out on the mesh
    optimizer: int  # moments and counters; for an evaluation the whole trained state beside it
    batch: int  # other arguments
    temporaries: int  # the compiler's figure: activations, gradients, copies
    program: int  # code; 0 in the quick form
    peak: int  # all of these but the code, with results that do not overwrite an argument


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class CompiledStep:
    """One step, compiled; or why it cannot be."""

    rows: int  # of a batch
    useful_flops: float  # of one step, all chips: the products of the mathematics
    memory: Memory | None = None  # None if the program does not fit and the compiler gave up
    cycles: Cycles | None = None  # None then too
    work: Work | None = None  # None then too
    collectives: tuple[Collective, ...] = ()  # empty then
    needed_bytes: int | None = None  # set then: the compiler's figure of a device's HBM needed
    available_bytes: int | None = None  # set then: a device's HBM
    compile_seconds: float
    copy_bytes: int = 0  # of a train step: the copy of parameters that evaluations have
    quick: bool = False


STEP: Final = pydantic.TypeAdapter(CompiledStep)


def quick_refusal() -> str | None:
    """Returns why this libtpu needs exact compilation, or None if the quick form supports it."""
    known = fitted()
    try:
        installed = importlib.metadata.version("libtpu")
    except importlib.metadata.PackageNotFoundError:
        return None  # the caller says what to install
    if installed == known.libtpu:
        return None
    return (
        f"compiled exactly: the quick form knows libtpu {known.libtpu} (fitted {known.date}), "
        f"found {installed}"
    )


def compile_step(request: CompileRequest) -> CompiledStep:
    """Compiles a step for its topology and reads the result.

    Give it a process of its own and end that soon: after a quick step the compiler continues.

    Raises:
        UserError: topology, mesh, batch and model do not fit together.
    """
    # Not removed here, since the compiler still writes to it. It is in the caller's own folder.
    folder = Path(tempfile.mkdtemp(prefix="bert_jax_step_"))
    schedules, files = folder / "schedules", folder / "program"
    schedules.mkdir()
    with written_to(schedules):
        topology, mesh = open_topology(request)
    accelerator = topology.accelerator
    step = lower_step(request, mesh)
    alone: Mapping[str, KernelSchedule] = {}
    if request.quick:
        alone = schedules_alone(step.lowered, mesh, accelerator=accelerator, written=schedules)
    files.mkdir()
    started = time.perf_counter()
    try:
        if request.quick:
            found = compile_quickly(step.lowered, files)
            module, memory = with_estimates(parse_hlo(found.text), accelerator), _quick(step, found)
        else:
            compiled, text = compile_exactly(step.lowered, files)
            module, memory = parse_hlo(text), _exact(step, compiled)
    except jax.errors.JaxRuntimeError as error:
        if (sizes := memory_refused(str(error))) is None:
            raise
        needed, available = sizes
        needed += step.beside_bytes
        return _too_large(step, needed, available, seconds=time.perf_counter() - started)
    seconds, available = time.perf_counter() - started, accelerator.device_hbm_bytes
    if memory.peak > available:  # because of arrays beside the step, unknown to the compiler
        return _too_large(step, memory.peak, available, seconds=seconds)
    program = Program.of(module)
    if request.quick:
        own = by_call(alone, program)
    else:
        own = read_schedules(schedules, kernels_called(program), accelerator=accelerator.name)
    own = as_called(own, program, accelerator)
    return CompiledStep(
        rows=step.rows,
        useful_flops=step.flops,
        memory=memory,
        cycles=count_cycles(program, bytes_per_cycle=accelerator.bytes_per_cycle, schedules=own),
        work=count_work(program, own),
        collectives=tuple(find_collectives(program, placement_of(topology, mesh))),
        compile_seconds=seconds,
        copy_bytes=step.copy_bytes,
        quick=request.quick,
    )


def _too_large(step: LoweredStep, needed: int, available: int, *, seconds: float) -> CompiledStep:
    return CompiledStep(
        rows=step.rows,
        useful_flops=step.flops,
        needed_bytes=needed,
        available_bytes=available,
        compile_seconds=seconds,
    )


def _exact(step: LoweredStep, compiled: jax.stages.Compiled) -> Memory:
    found = compiled.memory_analysis()
    assert found is not None  # only some backends have none
    # `peak_memory_in_bytes` includes buffers on the chip, and less than all temporaries, which are
    # reserved as a whole.
    results = found.output_size_in_bytes - found.alias_size_in_bytes  # that overwrite nothing
    return _memory(
        step,
        given=found.argument_size_in_bytes,
        temporaries=found.temp_size_in_bytes,
        total=found.argument_size_in_bytes + found.temp_size_in_bytes + results,
        program=found.generated_code_size_in_bytes,
    )


def _quick(step: LoweredStep, found: Scheduled) -> Memory:
    given = found.total - found.temporaries  # with results that overwrite nothing
    return _memory(step, given=given, temporaries=found.temporaries, total=found.total, program=0)


def _memory(step: LoweredStep, *, given: int, temporaries: int, total: int, program: int) -> Memory:
    """Returns bytes by kind; `given` are those of all arguments, parameters among them."""
    return Memory(
        parameters=step.parameter_bytes,
        optimizer=step.optimizer_bytes + step.beside_bytes,
        batch=max(given - step.parameter_bytes - step.optimizer_bytes, 0),
        temporaries=temporaries,
        program=program,
        peak=total + step.beside_bytes,
    )
