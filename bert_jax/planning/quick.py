"""The quick form: the run's own program, all layers, without the code that nobody will run.

Memory, collectives and what is executed are the compiler's. Cycles of operations are estimated by
`estimated_ops`, and those of kernels are of kernels compiled alone.
"""

import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Final

import jax

from bert_jax.model.config import resolve_architecture
from bert_jax.planning.compiled_step import (
    CompiledStep,
    Memory,
    read_step,
    refused_step,
    too_large,
)
from bert_jax.planning.estimated_ops import with_estimates
from bert_jax.planning.execution import Program
from bert_jax.planning.hlo import parse_hlo
from bert_jax.planning.kernel_schedule import written_to
from bert_jax.planning.kernels_alone import by_call, schedules_alone
from bert_jax.planning.program import LoweredStep, lower_step, open_topology, placement_of
from bert_jax.planning.request import CompileRequest
from bert_jax.planning.scheduled import Scheduled, schedule

# Of `base` on v5e:4x4 against its exact program 0.2%; what others may be, docs/planning.md.
CYCLES_OFF: Final = "10%"
NOTE: Final = (
    f"quick: of the run's own program without its code; memory is the compiler's, "
    f"cycles are estimated, to about {CYCLES_OFF}; --exact compiles it, in minutes"
)
# A program of fewer layers is compiled as quickly.
SHALLOW: Final = 2


def is_deep(request: CompileRequest) -> bool:
    """Whether compiling a step exactly takes minutes."""
    architecture = resolve_architecture(request.model, vocab_size=request.vocab_size)
    return architecture.num_hidden_layers > SHALLOW


def quick_step(request: CompileRequest) -> CompiledStep:
    """Compiles a step up to code generation. End the process soon: the compiler goes on.

    Raises:
        UserError: topology, mesh, batch and model do not fit together.
    """
    return dataclasses.replace(_scheduled_step(request), quick=True)


def _scheduled_step(request: CompileRequest) -> CompiledStep:
    # Never removed here, since the compiler still writes to it: it is in the caller's own folder.
    folder = Path(tempfile.mkdtemp(prefix="bert_jax_quick_"))
    schedules, program_files = folder / "schedules", folder / "program"
    schedules.mkdir()
    with written_to(schedules):
        topology, mesh = open_topology(request)
    accelerator = topology.accelerator
    step = lower_step(request, mesh)
    alone = schedules_alone(step.lowered, mesh, accelerator=accelerator, written=schedules)
    started = time.perf_counter()
    program_files.mkdir()
    try:
        found = schedule(step.lowered, program_files)
    except jax.errors.JaxRuntimeError as error:
        return refused_step(step, error, seconds=time.perf_counter() - started)
    seconds = time.perf_counter() - started
    memory, available = _memory(step, found), accelerator.device_hbm_bytes
    if memory.peak > available:
        return too_large(step, memory.peak, available, seconds=seconds)
    program = Program.of(with_estimates(parse_hlo(found.text), accelerator))
    own = by_call(alone, program)
    placement = placement_of(topology, mesh)
    return read_step(step, program, own, memory=memory, placement=placement, seconds=seconds)


def _memory(step: LoweredStep, found: Scheduled) -> Memory:
    held = step.parameter_bytes + step.optimizer_bytes
    return Memory(
        parameters=step.parameter_bytes,
        optimizer=step.optimizer_bytes + step.beside_bytes,
        batch=max(found.total - found.temporaries - held, 0),
        temporaries=found.temporaries,
        program=0,
        peak=found.total + step.beside_bytes,
    )
