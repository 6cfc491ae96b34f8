"""Counts the bundles of operations in the schedules that the compiler writes.

The compiler writes `estimated_cycles` only for XLA's own operations, not for Pallas kernels. With a
flag, libtpu also writes the final schedule of every operation: bundles of instructions, of which
the core issues one per cycle. A loop, such as the grid, ends with a branch back. The exit test
compares the counter with a constant, which determines the trips. A pipelined grid has two more
steps, which skip the body. Code for one index of a grid axis (`pl.when`) counts once per pass over
the axis. Other code that a branch may skip counts in full, so the bundles are upper bounds.

A lowered program contains the code of each kernel. Compiling only the kernels takes seconds. A
cache keeps each schedule for other programs with the same kernel.
"""

import dataclasses
import functools
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pydantic
from jax.sharding import Mesh

from bert_jax.files.atomic import write_whole
from bert_jax.files.scratch import user_cache
from bert_jax.parallel.accelerators import Accelerator
from bert_jax.parallel.memory import memory_refused
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.parallel.sharding_rules import replicated
from bert_jax.planning.compilation.compiler_files import compile_exactly
from bert_jax.planning.compilation.hlo import parse_hlo
from bert_jax.planning.compilation.program import Program
from bert_jax.planning.request import versions

# Dumps only the last passes, which write 1/30 of all files.
_DUMP: Final = (
    "--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true "
    "--xla_jf_dump_category_filter=codegen,utilization --xla_jf_dump_llo_pass_label_regex=^final_"
)
_FLAGS: Final = "LIBTPU_INIT_ARGS"
_FILE = re.compile(r"^(\d+-.+)-\d+-final_(bundles|hlo-static-per-bundle-utilization)\.txt$")

_BUNDLE = re.compile(r"^ *(?:0x)?[0-9a-f]+ [A-Z ]*:[> ]*\{", re.MULTILINE)
_BRANCH = re.compile(r"sbr\.rel \(!?%(\w+)\) target = \$region(\d+)")
_BEGINS = re.compile(r"Start(?:/End empty)? region (\d+)\b")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
# %p22 = scmp.ge.s32.totalorder (%p152), %s25, 98
_DEFINITION = re.compile(r"%([sp]\w+) = ([a-z_]\w*(?:\.\w+)*) +(?:\(!?%\w+\),? *)?([^;}]*)")
# %s15 = sphi %s1, %s2 /* phi copy :: iteration index, stage = 1 iter bound = 8 */
_INDEX = re.compile(r"%(\w+) = s(?:phi|ld) [^;}]*?iteration index, stage = 1 iter bound = (\d+)")
_OPERAND = re.compile(r"%(\w+)|\b(\d+)\b")
_SPILL = re.compile(r"#(allocation\d+_spill)\]")
_SPILLED = re.compile(r"= sst \[smem:\[#(allocation\d+_spill)\]\] %(\w+)")
# How the compiler stores a spilled predicate as a number, and how it reads the number.
_PREDICATE_AS_NUMBER: Final = (("scalar_select", "1", "0"), ("scmp.ne.s32.totalorder", "0"))
_DEEPEST: Final = 8  # maximum length of a chain of spills and selections
_BEHIND_BRANCH: Final = 4  # bundles after a branch that always run (delay slots)

_TARGET: Final = "tpu_custom_call"
# … custom_call @tpu_custom_call(%0, %1) {backend_config = "…", …} : (tensor<…>) -> tensor<…>
_CALL = re.compile(
    rf'custom_call @{_TARGET}\([^)]*\) {{backend_config = "([^"]*)".*kernel_name = "(\w+)".*}} : '
    r"\((.*?)\) -> (.*)$",
    re.MULTILINE,
)
_TENSOR = re.compile(r"tensor<([\dx]*?)x?([a-z]+\d+)>")
_ESCAPED = re.compile(r"\\([0-9A-F]{2})")  # escaped character in an MLIR string
_DTYPES: Final = {
    **{"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16},
    **{"i32": jnp.int32, "ui32": jnp.uint32, "i8": jnp.int8, "i1": jnp.bool_},
}


def write_schedules(folder: Path) -> None:
    """Makes libtpu write schedules to a folder. Call it before libtpu is loaded."""
    flags = os.environ.get(_FLAGS, "")
    os.environ[_FLAGS] = f"{flags} {_DUMP.format(folder=folder)}".strip()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """Schedule of one execution of an operation on one device."""

    bundles: int  # executed bundles: cycles without waits for memory
    slots: Mapping[str, int]  # bundles that each unit of the core alone needs
    steps: int  # trips of the outermost loop; for a kernel, its grid
    unknown_loops: int  # number of loops with unknown trips, which count as one trip


_SCHEDULE: Final = pydantic.TypeAdapter(Schedule)


def read_schedules(folder: Path, program: Program) -> dict[Hashable, Schedule]:
    """Returns the schedules that the compiler wrote, by the code of their operations.

    Of operations with equal code, the compiler writes one schedule.
    """
    files: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.iterdir()):
        if found := _FILE.match(path.name):
            files.setdefault(found[1], {})[found[2].partition("-")[0]] = path
    codes = {each.name: each.code for each in program.operations}
    return {
        code: read_schedule(pair["bundles"].read_text(), pair["hlo"].read_text())
        for stem, pair in files.items()
        if (code := codes.get(stem.partition("-")[2])) is not None and len(pair) == 2
    }


def read_schedule(bundles: str, utilization: str) -> Schedule:
    """Returns the schedule that the two files of an operation describe.

    `bundles` is the text of ``final_bundles``. `utilization` is the text of
    ``final_hlo-static-per-bundle-utilization``, with a row for each bundle.
    """
    starts = [found.start() for found in _BUNDLE.finditer(bundles)]
    ends = [*starts[1:], len(bundles)]
    texts = [bundles[start:end] for start, end in zip(starts, ends, strict=True)]
    stretches, unknown = _loops(texts)
    weights = np.ones(len(texts))
    for one in stretches:
        weights[one.first : one.last + 1] *= one.runs
    _, names, capacity, _, *rows = utilization.rstrip().splitlines()
    used = np.asarray([row.split() for row in rows], dtype=int)
    slots = weights @ used / np.asarray(capacity.split(), dtype=int)
    by_slot = zip(map(str.strip, names.split(",")), slots.tolist(), strict=True)
    return Schedule(
        bundles=round(weights.sum()),
        slots={name: round(most) for name, most in sorted(by_slot, key=lambda slot: -slot[1])},
        steps=round(max((one.runs for one in stretches), default=1)),
        unknown_loops=unknown,
    )


class _Stretch(NamedTuple):
    """Bundles `first` to `last`, and how often they run in one run of the enclosing code."""

    first: int
    last: int
    runs: float


def _loops(texts: Sequence[str]) -> tuple[list[_Stretch], int]:
    """Returns the loops, their skippable parts, and the number of loops with unknown trips."""
    begins = {region: at for at, text in enumerate(texts) for region in _BEGINS.findall(text)}
    values = _Values(texts)
    loops: list[_Stretch] = []
    parts: list[_Stretch] = []
    unknown = 0
    branches = [(at, *found) for at, text in enumerate(texts) for found in _BRANCH.findall(text)]
    # An inner loop ends before the loop around it, so inner loops come first.
    for at, predicate, region in branches:
        target = begins.get(region, -1)
        if 0 <= target <= at:
            trips = values.trips(predicate)
            unknown += trips is None
            loops.append(_Stretch(target, at + _BEHIND_BRANCH, trips or 1))
    for at, predicate, region in branches:
        first, last = at + _BEHIND_BRANCH + 1, begins.get(region, -1) - 1
        around = next((loop for loop in loops if loop.first <= first <= loop.last), None)
        if first > last or around is None:
            continue
        if (runs := values.steps_with_body(predicate)) is not None:
            parts.append(_Stretch(first, last, runs / around.runs))
        elif (steps := values.steps_per_run(predicate)) is not None:
            parts.append(_Stretch(first, last, 1 / steps))
    return loops + parts, unknown


class _Values:
    """Definitions of a schedule's scalars and predicates: operation and operands by name."""

    def __init__(self, texts: Sequence[str]) -> None:
        text = _COMMENT.sub("", "".join(texts))
        self._defined = {name: (op, operands) for name, op, operands in _DEFINITION.findall(text)}
        self._spilled = dict(reversed(_SPILLED.findall(text)))  # spilled register by address
        # Size of the grid axis whose index a scalar holds. The compiler comments on it.
        self._axis_sizes = {name: int(size) for name, size in _INDEX.findall("".join(texts))}

    def trips(self, predicate: str) -> int | None:
        """Returns the trips of a loop that ends when a predicate holds, or None if unknown."""
        limit = self._limit(predicate, "scmp.ge.s32.totalorder")
        step = limit and self._find(limit[0], "sadd.s32")
        if not limit or not step or not step[0].isdecimal():
            return None
        start = self._find(step[1], "sphi")
        first = start and self._find(start[0], "smov")
        if not first or not first[-1].isdecimal():
            return None
        return max(-(-(limit[1] - int(first[-1])) // int(step[0])), 0)

    def steps_with_body(self, predicate: str) -> int | None:
        """Returns the number of steps in which a predicate's counter is within bounds, or None."""
        if not (bounds := self._find(predicate, "pnand")):
            return None
        first = self._limit(bounds[0], "scmp.ge.s32.totalorder")
        behind = self._limit(bounds[1], "scmp.lt.s32.totalorder")
        return behind[1] - first[1] if first and behind and first[0] == behind[0] else None

    def steps_per_run(self, predicate: str) -> int | None:
        """Returns the size of a grid axis if a predicate runs code at only one of its indices."""
        found = self._find(predicate, "scmp.ne.s32.totalorder")
        is_index = len(found) == 2 and found[1].isdecimal()
        return (self._axis_sizes.get(found[0]) or None) if is_index else None

    def _limit(self, predicate: str, operation: str) -> tuple[str, int] | None:
        """Returns a value and the constant with which an operation compares it, or None."""
        found = self._find(predicate, operation)
        return (found[0], int(found[1])) if found and found[1].isdecimal() else None

    def _find(self, name: str, operation: str) -> list[str]:
        """Returns the operands of a value that `operation` defines; empty for other values."""
        for _ in range(_DEEPEST):
            op, text = self._defined.get(name, ("", ""))
            operands = [name or number for name, number in _OPERAND.findall(text)]
            if op.removesuffix(".u32") == operation:  # libtpu 0.0.51: smov.u32, others: smov
                return operands
            if op == "sld" and (spill := _SPILL.search(text)):
                name = self._spilled.get(spill[1], "")
            elif (op, *operands[1:]) in _PREDICATE_AS_NUMBER:
                name = operands[0]
            else:
                return []
        return []


class Kernel(NamedTuple):
    """A Pallas kernel of a lowered program."""

    name: str  # name in the `pallas_call`
    config: str  # configuration for the compiler as JSON
    operands: tuple[jax.ShapeDtypeStruct, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]

    @property
    def body(self) -> str:
        """The program of the kernel, which identifies it in a compiled program."""
        body: str = json.loads(self.config)["custom_call_config"]["body"]
        return body


def kernels_of(lowered: str) -> list[Kernel]:
    """Returns the distinct kernels in the text of a lowered program."""
    found: dict[str, Kernel] = {}
    for escaped, name, operands, results in _CALL.findall(lowered):
        config = _ESCAPED.sub(lambda code: chr(int(code[1], 16)), escaped)
        kernel = Kernel(name, config, _arrays(operands), _arrays(results))
        found[kernel.body] = kernel
    return list(found.values())


@functools.cache
def _code() -> bytes:
    """Returns this file, whose rules decide what a schedule means."""
    return Path(__file__).read_bytes()


def _arrays(types: str) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(
        jax.ShapeDtypeStruct(tuple(int(size) for size in sizes.split("x") if size), _DTYPES[dtype])
        for sizes, dtype in _TENSOR.findall(types)
    )


def schedules_alone(
    lowered: jax.stages.Lowered, mesh: Mesh, *, accelerator: Accelerator, written: Path
) -> dict[Hashable, Schedule]:
    """Returns the schedules of a lowered program's kernels, by their `body`.

    Compiles the kernels without the rest of the program, for one device of the mesh. `written` is
    the folder of the compiler's schedules. A kernel whose arrays do not fit on a device has no
    schedule.
    """

    def kept(kernel: Kernel) -> Path:
        deciding = repr((accelerator.name, versions(), kernel)).encode() + _code()
        return user_cache("plan") / f"kernel-{hashlib.sha256(deciding).hexdigest()[:32]}.json"

    found: dict[Hashable, Schedule] = {}
    missing = []
    for kernel in kernels_of(lowered.as_text()):
        try:
            found[kernel.body] = _SCHEDULE.validate_json(kept(kernel).read_bytes())
        except (FileNotFoundError, pydantic.ValidationError):
            missing.append(kernel)  # not cached, or cached in an older format
    for kernel, schedule in _fitting(missing, mesh, written):
        found[kernel.body] = schedule
        path = kept(kernel)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, _SCHEDULE.dump_json(schedule))
    return found


def _fitting(
    kernels: Sequence[Kernel], mesh: Mesh, written: Path
) -> Iterator[tuple[Kernel, Schedule]]:
    """Yields kernels with their schedules.

    Compiles all kernels together. If they do not fit into memory, compiles them one by one.
    """
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


def _compiled(kernels: Sequence[Kernel], mesh: Mesh, written: Path) -> dict[Hashable, Schedule]:
    def call_all(operands: list[tuple[jax.Array, ...]]) -> list[Any]:
        # Pass computed arrays, not arguments: as in a train step, XLA then places small arrays in
        # on-chip memory, and a kernel's code depends on that. Single numbers, such as the start of
        # a grid, are constants in a train step.
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
