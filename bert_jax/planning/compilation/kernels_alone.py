"""Schedules of a program's own kernels, compiled without the program around them.

A lowered program has the whole of each Pallas kernel in it. Taken out, all of them compile in
seconds, and each is kept for the next program that has the same.
"""

import hashlib
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
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
from bert_jax.planning.compilation.compiler_files import compile_exactly, memory_refused
from bert_jax.planning.compilation.hlo import parse_hlo
from bert_jax.planning.compilation.kernel_schedule import KernelSchedule, read_schedules
from bert_jax.planning.compilation.program import Program
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
    config: str  # for the compiler, JSON
    operands: tuple[jax.ShapeDtypeStruct, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]

    @property
    def body(self) -> str:
        """The program of the kernel, which identifies it in a compiled program."""
        body: str = json.loads(self.config)["custom_call_config"]["body"]
        return body


def kernels_of(lowered: str) -> list[Kernel]:
    """Returns the kernels of a lowered program's text, each once."""
    found: dict[str, Kernel] = {}
    for escaped, name, operands, results in _CALL.findall(lowered):
        config = _ESCAPED.sub(lambda code: chr(int(code[1], 16)), escaped)
        kernel = Kernel(name, config, _arrays(operands), _arrays(results))
        found[kernel.body] = kernel
    return list(found.values())


def _arrays(types: str) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(
        jax.ShapeDtypeStruct(tuple(int(size) for size in sizes.split("x") if size), _DTYPES[dtype])
        for sizes, dtype in _TENSOR.findall(types)
    )


def schedules_alone(
    lowered: jax.stages.Lowered, mesh: Mesh, *, accelerator: Accelerator, written: Path
) -> dict[str, KernelSchedule]:
    """Returns the schedules of a lowered program's kernels, by their `body`.

    They are compiled for one device of the mesh; the compiler writes its schedules to `written`. A
    kernel whose arrays are too large for a device has no schedule.
    """

    def kept(kernel: Kernel) -> Path:
        deciding = repr((accelerator.name, versions(), kernel)).encode()
        return user_cache("plan") / f"kernel-{hashlib.sha256(deciding).hexdigest()[:32]}.json"

    found, missing = {}, []
    for kernel in kernels_of(lowered.as_text()):
        try:
            found[kernel.body] = _SCHEDULE.validate_json(kept(kernel).read_bytes())
        except (FileNotFoundError, pydantic.ValidationError):
            missing.append(kernel)  # never compiled, or of an older form
    for kernel, schedule in _fitting(missing, mesh, written):
        found[kernel.body] = schedule
        path = kept(kernel)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, _SCHEDULE.dump_json(schedule))
    return found


def _fitting(
    kernels: Sequence[Kernel], mesh: Mesh, written: Path
) -> Iterator[tuple[Kernel, KernelSchedule]]:
    """Yields kernels with their schedules; compiles each alone if not all fit together."""
    if not kernels:
        return
    try:
        schedules = _compiled(kernels, mesh, written)
    except jax.errors.JaxRuntimeError as error:
        if memory_refused(str(error)) is None:
            raise
        for each in kernels if len(kernels) > 1 else ():
            yield from _fitting([each], mesh, written)
        return
    yield from ((each, schedules[each.body]) for each in kernels if each.body in schedules)


def _compiled(kernels: Sequence[Kernel], mesh: Mesh, written: Path) -> dict[str, KernelSchedule]:
    def call_all(operands: list[tuple[jax.Array, ...]]) -> list[Any]:
        # As in a program, small arrays that are made and used here are on the chip: other code.
        # A program fixes single numbers, such as where a grid begins.
        made = jax.tree.map(lambda x: jnp.zeros_like(x) if x.size == 1 else _changed(x), operands)
        results = [
            jax.ffi.ffi_call(
                _TARGET, each.results, custom_call_api_version=1, legacy_backend_config=each.config
            )(*arrays)
            for each, arrays in zip(kernels, made, strict=True)
        ]
        return jax.tree.map(_changed, results)

    one = replicated(make_mesh(MeshSection(), mesh.devices.reshape(-1)[:1].tolist()))
    operands = [
        tuple(jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one) for x in kernel.operands)
        for kernel in kernels
    ]
    with tempfile.TemporaryDirectory() as folder:
        found = compile_exactly(jax.jit(call_all).lower(operands), Path(folder))
    return read_schedules(written, Program.of(parse_hlo(found.text)))


def _changed(x: jax.Array) -> jax.Array:
    return ~x if x.dtype == jnp.bool_ else x + jnp.ones((), x.dtype)
