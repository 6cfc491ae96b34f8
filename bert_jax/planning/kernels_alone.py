"""Schedules of our own kernels, compiled without the program around them.

A kernel is the same in every program of an accelerator, a row length and as many rows a block: only
how many blocks it runs over differs. So it is compiled for a few rows of one group, once, and kept.
"""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import jax
import jax.numpy as jnp
import pydantic
from jax.sharding import Mesh

from bert_jax.files.atomic import write_whole
from bert_jax.files.scratch import user_cache
from bert_jax.kernels.attention import fused_attention
from bert_jax.kernels.attention_shape import Shape
from bert_jax.model.config import resolve_architecture
from bert_jax.model.execution import resolve_execution
from bert_jax.parallel.accelerators import composes_int32
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.rules import axis_parts, batch_parts
from bert_jax.parallel.section import MeshSection
from bert_jax.planning.cycles import hbm_bytes, kernels_called
from bert_jax.planning.execution import Program
from bert_jax.planning.hlo import parse_hlo
from bert_jax.planning.kernel_schedule import KernelSchedule, read_schedules
from bert_jax.planning.optimized_text import optimized_text
from bert_jax.planning.request import CompileRequest, code_and_versions

ROWS: Final = 64  # at least, so that a grid's first and last step weigh little
_SCHEDULES: Final = pydantic.TypeAdapter(dict[str, KernelSchedule])


class KernelShape(pydantic.BaseModel, frozen=True):
    """What a kernel is compiled for, and one block of it."""

    accelerator: str  # `v5e`
    rows: int  # that it is compiled for
    length: int  # tokens of a row
    heads: int  # of a block
    columns: int  # of a head
    rate: float  # of dropout
    dtype: str  # of queries, keys and values

    def key(self) -> str:
        """Returns a digest of it, of versions and of our code."""
        return hashlib.sha256((self.model_dump_json() + code_and_versions()).encode()).hexdigest()


def kernel_shape(request: CompileRequest, mesh: Mesh, *, accelerator: str) -> KernelShape | None:
    """Returns the kernel that a train step runs; None: it runs none."""
    architecture = resolve_architecture(request.model, vocab_size=request.vocab_size)
    phases = request.train.phases
    execution = resolve_execution(
        request.model.execution,
        architecture=architecture,
        mesh=mesh,
        longest=max(phase.seq_length for phase in phases),
    )
    if execution.attention != "fused":
        return None
    columns = architecture.hidden_size // architecture.num_attention_heads
    rate, phase = architecture.attention_probs_dropout_prob, phases[request.phase]
    shapes = [
        Shape(
            batch=_rows_of_device(request, mesh),
            length=phase.seq_length,
            heads=architecture.num_attention_heads // axis_parts(mesh, "heads"),
            columns=columns,
            rate=rate,
            forward=forward,
            composes=composes_int32(mesh.devices.flat[0]),
        )
        for forward in (True, False)
    ]
    return KernelShape(
        accelerator=accelerator,
        rows=_few_rows(shapes),
        length=phase.seq_length,
        heads=shapes[0].group,
        columns=columns,
        rate=rate,
        dtype=execution.dtype,
    )


def _rows_of_device(request: CompileRequest, mesh: Mesh) -> int:
    """Returns the rows that one device computes at a time."""
    phase, evaluation = request.train.phases[request.phase], request.train.evaluation
    rows = phase.batch_size // phase.accumulation
    if request.kind != "train":
        rows = (evaluation and evaluation.batch_size) or phase.batch_size
    return rows // batch_parts(mesh)


def _few_rows(shapes: Sequence[Shape]) -> int:
    """Returns how many rows suffice for blocks of as many rows as those of `shapes`."""

    def suffice(rows: int) -> bool:
        return all(dataclasses.replace(each, batch=rows).rows == each.rows for each in shapes)

    return next(filter(suffice, itertools.count(ROWS)))


def schedules_alone(shape: KernelShape, mesh: Mesh, *, written: Path) -> dict[str, KernelSchedule]:
    """Returns the schedules of a kernel and its gradient for `shape.rows` rows, by their names.

    One device of the mesh is taken; schedules are `written` as `kernel_schedule.written_to` has it.
    """
    kept = user_cache("plan") / f"kernel-{shape.key()[:32]}.json"
    try:
        return _SCHEDULES.validate_json(kept.read_bytes())
    except (FileNotFoundError, pydantic.ValidationError):
        pass  # never asked, or of an older form
    one = make_mesh(MeshSection(), mesh.devices.reshape(-1)[:1].tolist())
    with jax.set_mesh(one):
        text = optimized_text(_lower(shape).compile(), name="jit_kernels")
    called = kernels_called(Program.of(parse_hlo(text)))
    found = {
        name.partition(".")[0]: schedule
        for name, schedule in read_schedules(written, called, accelerator=shape.accelerator).items()
    }
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_whole(kept, _SCHEDULES.dump_json(found))
    return found


def scaled(
    alone: Mapping[str, KernelSchedule], program: Program, *, rows: int
) -> dict[str, KernelSchedule]:
    """Returns schedules by the name of each call in a program, for what it has of blocks and bytes.

    `alone` is by name of the kernel, for one group of heads of `rows` rows. Of how many rows and
    groups a call is, its first operand says, the words.
    """
    calls = kernels_called(program)
    found = {}
    for each in program.executed:
        name = each.instruction.name
        if name in calls and (own := alone.get(name.partition(".")[0])) is not None:
            _, batch, groups, *_ = each.computation[each.instruction.operands[0]].arrays[0].sizes
            schedule = own.times(batch * groups / rows)
            # Alone, operands so small lie on the chip; here it is known which do.
            found[name] = dataclasses.replace(schedule, copied_bytes=hbm_bytes(each))
    return found


def _lower(shape: KernelShape) -> jax.stages.Lowered:
    width = shape.heads * shape.columns
    row = jax.ShapeDtypeStruct((shape.rows, shape.length, width), jnp.dtype(shape.dtype))
    bias = jax.ShapeDtypeStruct((3, width), jnp.float32)
    segments = jax.ShapeDtypeStruct((shape.rows, shape.length), jnp.int32)
    seeds = jax.ShapeDtypeStruct((2, shape.rows, shape.heads), jnp.int32)
    attend: Callable[..., jax.Array] = functools.partial(
        fused_attention, columns=shape.columns, rate=shape.rate
    )

    def kernels(*operands: jax.Array) -> object:
        return jax.grad(lambda *each: attend(*each).astype(jnp.float32).sum(), argnums=(0, 1))(
            operands[:3], *operands[3:]
        )

    return jax.jit(kernels).lower(row, row, row, bias, segments, seeds)
