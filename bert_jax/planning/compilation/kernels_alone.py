"""Schedules of a program's own kernels, compiled without the program around them.

A lowered program has the whole of each Pallas kernel in it. Taken out, all of them compile in
seconds, and each is kept for the next program that has the same.
"""

import dataclasses
import hashlib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import pydantic
from jax.sharding import Mesh

from bert_jax.files.atomic import write_whole
from bert_jax.files.scratch import user_cache
from bert_jax.parallel.accelerators import Accelerator
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.rules import replicated
from bert_jax.parallel.section import MeshSection
from bert_jax.planning.compilation.compiler_files import compile_exactly
from bert_jax.planning.compilation.cycles import hbm_bytes, kernels_called
from bert_jax.planning.compilation.execution import Program
from bert_jax.planning.compilation.hlo import parse_hlo
from bert_jax.planning.compilation.kernel_schedule import KernelSchedule, read_schedules
from bert_jax.planning.compilation.refusal import memory_refused
from bert_jax.planning.compilation.work import declared_flops
from bert_jax.planning.request import versions

_SCHEDULE: Final = pydantic.TypeAdapter(KernelSchedule)
_TARGET: Final = "tpu_custom_call"
# … custom_call @tpu_custom_call(%0, %1) {backend_config = "…", …} : (tensor<…>) -> tensor<…>
_CALL = re.compile(
    rf'custom_call @{_TARGET}\([^)]*\) {{backend_config = "([^"]*)".*kernel_name = "(\w+)".*}} : '
    r"\((.*?)\) -> (.*)$",
    re.MULTILINE,
)
_TENSOR = re.compile(r"tensor<([\dx]*?)x?([a-z]+\d+)>")
_ESCAPED = re.compile(r"\\([0-9A-F]{2})")  # of a string in MLIR
_DTYPES: Final = {
    **{"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16},
    **{"i32": jnp.int32, "ui32": jnp.uint32, "i8": jnp.int8, "i1": jnp.bool_},
}


class Kernel(NamedTuple):
    """A Pallas kernel of a lowered program."""

    name: str  # as its `pallas_call` says
    config: str  # what the compiler is told of it, JSON
    operands: tuple[jax.ShapeDtypeStruct, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]

    @property
    def body(self) -> str:
        """The program of the kernel, by which a call of it is known."""
        body: str = json.loads(self.config)["custom_call_config"]["body"]
        return body


def kernels_of(lowered: str) -> list[Kernel]:
    """Returns the kernels of a lowered program's text, each once."""
    found = (
        Kernel(
            name,
            _ESCAPED.sub(lambda code: chr(int(code[1], 16)), config),
            _arrays(takes),
            _arrays(makes),
        )
        for config, name, takes, makes in _CALL.findall(lowered)
    )
    return list({each.body: each for each in found}.values())


def schedules_alone(
    lowered: jax.stages.Lowered, mesh: Mesh, *, accelerator: Accelerator, written: Path
) -> dict[str, KernelSchedule]:
    """Returns the schedules of a lowered program's kernels, by their `body`.

    They are compiled for one device of the mesh; schedules are `written` as
    `kernel_schedule.written_to` has it. A kernel has none whose arrays are too large for a device.
    """
    found, missing = {}, []
    for kernel in kernels_of(lowered.as_text()):
        try:
            found[kernel.body] = _SCHEDULE.validate_json(_kept(kernel, accelerator).read_bytes())
        except (FileNotFoundError, pydantic.ValidationError):
            missing.append(kernel)  # never compiled, or of an older form
    for kernel, schedule in _fitting(missing, mesh, accelerator=accelerator, written=written):
        found[kernel.body] = schedule
        path = _kept(kernel, accelerator)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, _SCHEDULE.dump_json(schedule))
    return found


def as_called(
    schedules: Mapping[str, KernelSchedule], program: Program, accelerator: Accelerator
) -> dict[str, KernelSchedule]:
    """Returns schedules with what a program says of each call, both by its name.

    Operands and results pass between HBM and the chip once, those that lie there: a schedule counts
    copies that are branched over. And no schedule is shorter than its products at the peak of the
    matrix units, which bundles do not wait for.
    """
    peak = accelerator.peak_flops["bfloat16"] / accelerator.devices_per_chip / accelerator.clock_hz
    return {
        each.instruction.name: dataclasses.replace(
            schedules[each.instruction.name],
            copied_bytes=hbm_bytes(each),
            products=round(declared_flops(each.instruction) / peak),
        )
        for each in program.executed
        if each.instruction.name in schedules
    }


def by_call(schedules: Mapping[str, KernelSchedule], program: Program) -> dict[str, KernelSchedule]:
    """Returns the schedules that `schedules_alone` has, by the name of each call in a program."""
    called = kernels_called(program)
    return {name: schedules[body] for name, body in called.items() if body in schedules}


def _fitting(
    kernels: Sequence[Kernel], mesh: Mesh, *, accelerator: Accelerator, written: Path
) -> Iterator[tuple[Kernel, KernelSchedule]]:
    """Yields what `_compiled` does; of kernels that do not fit beside one another, each alone."""
    try:
        yield from _compiled(kernels, mesh, accelerator=accelerator, written=written)
    except jax.errors.JaxRuntimeError as error:
        if memory_refused(str(error)) is None:
            raise
        for each in kernels if len(kernels) > 1 else ():
            yield from _fitting([each], mesh, accelerator=accelerator, written=written)


def _compiled(
    kernels: Sequence[Kernel], mesh: Mesh, *, accelerator: Accelerator, written: Path
) -> Iterator[tuple[Kernel, KernelSchedule]]:
    if not kernels:
        return

    def call_all(operands: list[tuple[jax.Array, ...]]) -> list[Any]:
        # Made and used here, as in a program, what is small lies on the chip: other code.
        # A number is one that a program fixes, as where a grid begins.
        made = jax.tree.map(lambda x: jnp.zeros_like(x) if x.size == 1 else _changed(x), operands)
        results = [
            jax.ffi.ffi_call(
                _TARGET, each.results, custom_call_api_version=1, legacy_backend_config=each.config
            )(*arrays)
            for each, arrays in zip(kernels, made, strict=True)
        ]
        return jax.tree.map(_changed, results)

    one = make_mesh(MeshSection(), mesh.devices.reshape(-1)[:1].tolist())
    operands = [
        tuple(jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated(one)) for x in each)
        for each in (kernel.operands for kernel in kernels)
    ]
    with tempfile.TemporaryDirectory() as folder:
        _, text = compile_exactly(jax.jit(call_all).lower(operands), Path(folder))
    called = kernels_called(Program.of(parse_hlo(text)))
    schedules = read_schedules(written, called, accelerator=accelerator.name)
    by_body = {body: schedules[name] for name, body in called.items() if name in schedules}
    for kernel in kernels:
        if kernel.body in by_body:
            yield kernel, by_body[kernel.body]


def _changed(x: jax.Array) -> jax.Array:
    return ~x if x.dtype == jnp.bool_ else x + jnp.ones((), x.dtype)


def _kept(kernel: Kernel, accelerator: Accelerator) -> Path:
    """Returns where a schedule is kept: by all that decides it, so whatever our code becomes."""
    deciding = repr((accelerator.name, versions(), kernel))
    return user_cache("plan") / f"kernel-{hashlib.sha256(deciding.encode()).hexdigest()[:32]}.json"


def _arrays(types: str) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(
        jax.ShapeDtypeStruct(tuple(int(size) for size in sizes.split("x") if size), _DTYPES[dtype])
        for sizes, dtype in _TENSOR.findall(types)
    )
