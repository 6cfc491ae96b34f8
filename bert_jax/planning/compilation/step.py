"""Compiles one program for a TPU topology: memory, cycles, work, collectives.

``python -m bert_jax.planning.compilation.step FOLDER`` compiles a request in a separate process.
libtpu reads its settings only once per process. If the compiler runs out of memory, only its own
process ends.

An exact step has the code that the run would execute. A quick step skips code generation: memory
and collectives are from the compiler, and `op_cycles` estimates the cycles. The quick form depends
on the file formats of one version of libtpu.
"""

import dataclasses
import importlib.metadata
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, Final

import jax
import pydantic
from jax.sharding import Mesh

from bert_jax.errors import UserError, error_to_json
from bert_jax.parallel.memory import memory_refused
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.parallel.topology import TpuTopology, parse_topology
from bert_jax.planning.compilation.collectives import (
    Collective,
    DevicePlacement,
    find_collectives,
)
from bert_jax.planning.compilation.compiler_files import compile_exactly, compile_quickly
from bert_jax.planning.compilation.cycles import Cycles, by_schedule, count_cycles
from bert_jax.planning.compilation.forward import lower_forward
from bert_jax.planning.compilation.hlo import parse_hlo
from bert_jax.planning.compilation.kernels import (
    Schedule,
    read_schedules,
    schedules_alone,
    write_schedules,
)
from bert_jax.planning.compilation.lowering import LoweredStep, lower_step, open_devices
from bert_jax.planning.compilation.op_cycles import estimates, fitted
from bert_jax.planning.compilation.program import Program, compilers_own
from bert_jax.planning.request import AnyRequest, CannotPlan, ForwardRequest


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one JAX device."""

    parameters: int  # parameters as sharded over the mesh
    # Moments, moving average and counters; for an evaluation, the train state that it does not use
    optimizer: int
    batch: int  # other arguments
    temporaries: int  # activations, gradients and copies
    peak: int  # sum of the above, and results that do not overwrite an argument


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class CompiledStep:
    """One compiled step or forward program. If it does not fit, only its memory is known."""

    rows: int  # rows of a batch
    useful_flops: float  # FLOPs of the model's products in one step on all chips, without remat
    # Unset if the program does not fit.
    memory: Memory | None = None
    cycles: Cycles | None = None
    collectives: tuple[Collective, ...] = ()
    # Set if the program does not fit.
    needed_bytes: int | None = None  # needed HBM of a device
    available_bytes: int | None = None  # HBM of a device
    compile_seconds: float
    copy_bytes: int = 0  # copy of parameters for evaluations; only set for a train step
    quick: bool = False

    @property
    def peak(self) -> int:
        """Peak HBM of a device in bytes."""
        return self.memory.peak if self.memory else self.needed_bytes or 0


STEP: Final = pydantic.TypeAdapter(CompiledStep)
_REQUEST: Final[pydantic.TypeAdapter[AnyRequest]] = pydantic.TypeAdapter(AnyRequest)
# Names of the files in the folder of a compiling process.
REQUEST: Final = "request.json"
RESULT: Final = "result.json"
LOG: Final = "log"
_LONGEST: Final = 500  # maximum characters of a reason: compiler errors can list all operands


def quick_refusal() -> str | None:
    """Returns why this libtpu needs exact compilation, or None if the quick form supports it."""
    known = fitted()
    try:
        installed = importlib.metadata.version("libtpu")
    except importlib.metadata.PackageNotFoundError:
        return None  # the caller raises an error
    if installed in known.libtpu:
        return None
    return (
        f"compiled exactly: the quick form supports libtpu {' and '.join(known.libtpu)} "
        f"(fitted {known.date}), found {installed}"
    )


def compile_step(request: AnyRequest) -> CompiledStep:
    """Compiles a program for its topology and reads the result.

    Run it in a separate process and end the process soon: after a quick step, the compiler
    continues in a thread.

    Raises:
        UserError: if topology, mesh, batch and model do not fit together.
    """
    # Not removed here, because the compiler still writes to it. The caller removes TMPDIR.
    folder = Path(tempfile.mkdtemp(prefix="bert_jax_step_"))
    schedules = folder / "schedules"
    schedules.mkdir()
    write_schedules(schedules)
    topology = parse_topology(request.topology)
    if isinstance(request, ForwardRequest):  # all devices run the same program, each for itself
        mesh = make_mesh(MeshSection(), open_devices(topology, slices=1)[:1])
        step = lower_forward(request, mesh)
    else:
        mesh = make_mesh(request.mesh, open_devices(topology, slices=request.mesh.slices))
        step = lower_step(request, mesh)
    return compile_lowered(
        step, mesh, topology=topology, schedules=schedules, quick=request.quick, folder=folder
    )


def compile_lowered(
    step: LoweredStep,
    mesh: Mesh,
    *,
    topology: TpuTopology,
    schedules: Path,
    quick: bool,
    folder: Path,
) -> CompiledStep:
    """Compiles a lowered step and reads the result.

    Args:
        step: a step that was lowered for `mesh`.
        mesh: devices of the topology.
        topology: topology of one slice.
        schedules: directory of `write_schedules`.
        quick: whether to skip code generation. The process should then end soon.
        folder: the compiler writes its files here, in a new directory.
    """
    files = Path(tempfile.mkdtemp(prefix="program_", dir=folder))
    accelerator = topology.accelerator
    cycles_of: dict[Hashable, Schedule] = {}
    if quick:
        cycles_of = schedules_alone(step.lowered, mesh, accelerator=accelerator, written=schedules)
    started, found = time.perf_counter(), None
    compile_program = compile_quickly if quick else compile_exactly
    try:
        found = compile_program(step.lowered, files)
        needed, available = found.total, accelerator.device_hbm_bytes
    except jax.errors.JaxRuntimeError as error:
        if (sizes := memory_refused(str(error))) is None:
            raise
        needed, available = sizes
    needed += step.beside_bytes  # unknown to the compiler
    result = CompiledStep(
        rows=step.rows,
        useful_flops=step.flops,
        compile_seconds=time.perf_counter() - started,
    )
    if found is None or needed > available:
        return dataclasses.replace(result, needed_bytes=needed, available_bytes=available)
    module = parse_hlo(found.text)
    program = Program.of(module, estimates(accelerator) if quick else compilers_own)
    other: Mapping[str, int] = {}
    if not quick:
        cycles_of = read_schedules(schedules, program)
        readings = [program, Program.of(module, by_schedule(cycles_of, accelerator))]
        program, second = reversed(readings) if accelerator.judged_by_schedule else readings
        other = count_cycles(second, cycles_of, accelerator).by_kind
    counted = count_cycles(program, cycles_of, accelerator)
    return dataclasses.replace(
        result,
        memory=Memory(
            parameters=step.parameter_bytes,
            optimizer=step.optimizer_bytes + step.beside_bytes,
            batch=max(found.arguments - step.parameter_bytes - step.optimizer_bytes, 0),
            temporaries=found.temporaries,
            peak=needed,
        ),
        cycles=dataclasses.replace(counted, other_reading=other),
        collectives=tuple(find_collectives(program, DevicePlacement.of(topology, mesh))),
        copy_bytes=step.copy_bytes,
        quick=quick,
    )


def main(folder: str) -> None:
    """Reads a request from a folder and writes ``{"step": …}`` into it.

    If compilation fails, writes other keys instead. ``refused`` (a user's mistake) and ``unable``
    (a topology unknown to this libtpu) have the error, see `error_to_json`. ``failed`` and
    ``traceback`` describe other errors.
    """
    request = _REQUEST.validate_json(Path(folder, REQUEST).read_bytes())
    result: dict[str, Any] = {}
    try:
        result["step"] = STEP.dump_python(compile_step(request), mode="json")
    except UserError as error:
        kind = "unable" if isinstance(error, CannotPlan) else "refused"
        result[kind] = error_to_json(error)
    except Exception as error:
        result = {"failed": _reason(error), "traceback": traceback.format_exc()}
    Path(folder, RESULT).write_text(json.dumps(result), encoding="utf-8")
    # After a quick step, the compiler still generates code, and a normal exit would wait for it.
    os._exit(0)


def _reason(error: Exception) -> str:
    """Returns the first line of an error, and the second if the first ends in a colon.

    The compiler's errors end with addresses or a dump, and the first line may be only a name:
    ``"RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom: Ran out of memory in …"``.
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    said = " ".join(lines[: 2 if lines[0].rstrip().endswith(":") else 1])
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}…"


if __name__ == "__main__":
    main(*sys.argv[1:])
