"""Ahead-of-time compilation of steps, so that no step is recompiled unnoticed.

A compiled program raises an error for arrays of another shape or sharding, so nothing compiles
after the first steps of a phase.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.errors import counted
from bert_jax.optim.schedule import Schedule
from bert_jax.parallel.compiling import compiling, made_once
from bert_jax.parallel.memory import describe_bytes, device_memory
from bert_jax.parallel.sharding_rules import batch_sharding, replicated
from bert_jax.task import Batch, Params, RowTransform, Task
from bert_jax.train.state import ModelDefinition, TrainState
from bert_jax.train.step import (
    StepFigures,
    StepLimits,
    StepSpec,
    TrainStep,
    make_evaluation_step,
    make_train_step,
)

BatchShape: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]  # (name, shape) by array


# By default, XLA splits the matmuls of weight gradients into one window per device, to overlap
# communication and compute. On v5e, the windows take 50% more cycles than the unsplit matmuls.
TPU_OPTIONS: Final = {"xla_tpu_enable_windowed_einsum_for_reduce_scatter": False}


def abstract_batch(transform: RowTransform, mesh: Mesh, *, rows: int) -> Any:
    """Returns the shapes, dtypes and shardings of a batch of `rows` rows, without reading data."""
    # A batch without rows has the names, dtypes and other axes of the arrays.
    return {
        name: jax.ShapeDtypeStruct(
            (rows, *array.shape[1:]), array.dtype, sharding=batch_sharding(mesh)
        )
        for name, array in transform.batch([], []).items()
    }


def lower_train_step(
    spec: StepSpec,
    state: TrainState,
    batch: Batch,
    schedule: Schedule,
    frozen: Params,
    *,
    accumulation: int,
) -> jax.stages.Lowered:
    """Returns the train step lowered for the shapes and shardings of its arguments.

    Call it under `jax.set_mesh`. The arguments may be arrays or ShapeDtypeStructs. The program
    donates the state: the new state reuses its memory. The program depends on the number of
    schedule segments, but not on their values.
    """
    layouts, structure = jax.tree.flatten(jax.tree.map(lambda leaf: leaf.sharding, state))
    everywhere = state.step.sharding
    scalar = jax.ShapeDtypeStruct((), jnp.float32, sharding=everywhere)
    numbers = jax.ShapeDtypeStruct(schedule.shape, schedule.dtype, sharding=everywhere)
    step = make_train_step(spec, accumulation=accumulation)
    jitted = _jit_step(step, structure, tuple(layouts))
    return jitted.lower(state, batch, StepLimits(scalar, scalar), numbers, frozen)


@made_once
def _jit_step(
    step: TrainStep, structure: Any, layouts: tuple[jax.sharding.Sharding, ...]
) -> jax.stages.Wrapped:
    """Returns the jitted step for a state of this structure and these shardings."""
    layout = jax.tree.unflatten(structure, layouts)
    on_tpu = next(iter(layout.step.device_set)).platform == "tpu"
    return jax.jit(
        step,
        donate_argnums=0,
        out_shardings=(layout, layout.step),
        compiler_options=TPU_OPTIONS if on_tpu else None,
    )


class StepMemory(NamedTuple):
    """The memory that a compiled step needs, in bytes of one device."""

    rows: int  # rows of a batch on all devices
    arguments: int  # parameters, moments and the batch
    temporaries: int  # activations, gradients and copies

    def describe(self) -> str:
        """Returns the needs in a sentence."""
        sizes = self.arguments + self.temporaries, self.arguments, self.temporaries
        whole, state, rest = map(describe_bytes, sizes)
        return (
            f"A step of {counted(self.rows, 'row')} needs {whole} per device: {state} for "
            f"parameters and moments, {rest} for activations and gradients."
        )

    def shortage(self) -> str | None:
        """Returns a warning if the devices have too little free memory for the temporaries."""
        memory = device_memory()
        if memory is None or memory.holds(self.temporaries):
            return None
        return f"memory: {memory.owner} has {memory.describe()}. {self.describe()}"


class StepPrograms:
    """The train step, compiled once for each batch shape of a phase.

    Attributes:
        memory: memory of the last compiled program; None before, or if it is unknown.
    """

    def __init__(
        self, spec: StepSpec, *, accumulation: int, shapes: int, warn: Callable[[str], None]
    ):
        """Compiles nothing yet.

        `shapes` is the number of different batch shapes. `warn` gets a line if a program needs more
        than the free memory.
        """
        self._spec, self._accumulation, self._shapes = spec, accumulation, shapes
        self._programs: dict[BatchShape, jax.stages.Compiled] = {}
        self._warn = warn
        self.memory: StepMemory | None = None

    def __call__(
        self,
        state: TrainState,
        batch: Batch,
        limits: StepLimits,
        schedule: Schedule,
        frozen: Params,
    ) -> tuple[TrainState, StepFigures]:
        """Runs the step; if the shapes of `batch` are new, compiles it first.

        Raises RuntimeError like `compile`.
        """
        program = self.compile(state, batch, schedule, frozen)
        return program(state, batch, limits, schedule, frozen)

    def compile(
        self, state: TrainState, batch: Batch, schedule: Schedule, frozen: Params
    ) -> jax.stages.Compiled:
        """Returns the program for the shapes of `batch`; the first call for a shape compiles it.

        The arguments may be arrays or ShapeDtypeStructs. Raises RuntimeError if there are more
        batch shapes than `shapes` of the constructor.
        """
        shape = shape_of(batch)
        if shape not in self._programs:
            if len(self._programs) == self._shapes:
                raise RuntimeError(f"more than {self._shapes} batch shapes, found {dict(shape)}")
            number = f"step {len(self._programs) + 1} of {self._shapes}"
            which = "the step" if self._shapes == 1 else number
            with compiling(f"{which} ({describe_batch(batch)})"):
                lowered = lower_train_step(
                    self._spec, state, batch, schedule, frozen, accumulation=self._accumulation
                )
                self._programs[shape] = lowered.compile()
            self.memory = _memory(self._programs[shape], batch)
            if self.memory is not None and (shortage := self.memory.shortage()):
                self._warn(shortage)
        return self._programs[shape]


def _memory(program: jax.stages.Compiled, batch: Batch) -> StepMemory | None:
    """Returns the memory of a program. None on TPUs, whose compiler refuses what does not fit."""
    if jax.default_backend() == "tpu" or (found := program.memory_analysis()) is None:
        return None
    new = max(found.output_size_in_bytes - found.alias_size_in_bytes, 0)
    return StepMemory(
        rows=batch["input_ids"].shape[0],
        arguments=found.argument_size_in_bytes,
        temporaries=found.temp_size_in_bytes + new,
    )


def shape_of(batch: Batch) -> BatchShape:
    """Returns the shapes of a batch, as a key of programs."""
    return tuple((name, batch[name].shape) for name in sorted(batch))


def describe_batch(batch: Batch) -> str:
    """Returns the batch shape as text, such as ``32 × 128 tokens``."""
    return " × ".join(map(str, batch["input_ids"].shape)) + " tokens"


def lower_evaluation_step(
    task: Task, model: ModelDefinition, mesh: Mesh, params: Params, batch: Batch, frozen: Params
) -> jax.stages.Lowered:
    """Returns the evaluation step, lowered for arrays or ShapeDtypeStructs."""
    index = jax.ShapeDtypeStruct((), jnp.uint32, sharding=replicated(mesh))
    return _jit_evaluation(task, model, mesh).lower(params, batch, frozen, index)


@made_once
def _jit_evaluation(task: Task, model: ModelDefinition, mesh: Mesh) -> jax.stages.Wrapped:
    return jax.jit(make_evaluation_step(task, model), out_shardings=replicated(mesh))
