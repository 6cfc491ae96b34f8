"""A train step built from the real parts, for tests of the step and of meshes."""

import dataclasses
import functools
import math
from typing import Any

import jax
import numpy as np

from bert_jax.model.section import Execution
from bert_jax.objectives.registry import OBJECTIVES, make_objective
from bert_jax.optim.optimizer import make_optimizer
from bert_jax.optim.schedule import pretraining_schedule
from bert_jax.optim.sections import OptimizerSection, ScheduleSegment
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.task import HostBatch, Objective
from bert_jax.train.compiled import lower_train_step
from bert_jax.train.sections import EmaSection
from bert_jax.train.state import TrainState, abstract_state, define_model, draw_params, initialise
from bert_jax.train.step import StepLimits, StepSpec
from tests.objectives.runs import variant_of
from tests.objectives.teachers import frozen_params, small_teacher
from tests.support import on_mesh, relative_error, small_batch, small_encoder

PEAK = 1e-2
KEY_BIAS = "attention/key/bias"
UNLIMITED = StepLimits()

# Turns off LLVM's optimizations, which would take most of these tests' time. XLA's partitioning
# does not change.
QUICK: Any = {"xla_backend_optimization_level": 0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """Settings of training except the mesh. Hashable, because they are keys of caches."""

    objective: str = "bert"  # its name, or the name of a variant
    encoder: str = "bert"
    dropout: float = 0.0
    optimizer: str = "adamw"
    accumulation: int = 1
    attention: str = "xla"
    loss: str = "xla"
    unroll: int | None = None
    peak: float = PEAK
    ema: float | None = None  # decay of the moving average
    changes: tuple[tuple[str, int], ...] = ()  # architecture overrides

    @property
    def task(self) -> Objective:
        kernels = {"attention": self.attention, "loss": self.loss}
        execution = {"dtype": "float32", "unroll": self.unroll, **kernels}
        variant = variant_of(self.objective)
        needed = {"teacher": str(small_teacher())} if variant.kind == "distill" else {}
        architecture = small_encoder(self.encoder, **(variant.changes | dict(self.changes)))
        return make_objective(
            OBJECTIVES[variant.kind].model_validate(needed | variant.settings),
            architecture=architecture.with_dropout(self.dropout),
            execution=Execution.model_validate(execution),
            tokenizer=None,  # pyright: ignore[reportArgumentType] (only `features` needs one)
        )

    @property
    def section(self) -> OptimizerSection:
        values = {"name": self.optimizer, "learning_rate": self.peak, "warmup_steps": 2}
        if self.optimizer == "stable_adamw":
            values["bias_correction"] = True
        return OptimizerSection.model_validate(values)


Shape = tuple[int, ...]  # devices along data, fsdp and tensor, or along all four axes of a mesh


def mesh_of(shape: Shape) -> jax.sharding.Mesh:
    """Returns a mesh of simulated devices."""
    *copies, data, fsdp, tensor = shape
    number = math.prod(copies)
    section = MeshSection(data=number * data, fsdp=fsdp, tensor=tensor, copies=number)
    return make_mesh(section, jax.devices()[: math.prod(shape)])


class Trainer:
    """The compiled train step of a setting on a mesh."""

    def __init__(self, setting: Setting, shape: Shape, batch: HostBatch) -> None:
        task = setting.task
        self.model = define_model(task.build)
        warmup = setting.section.warmup_steps
        self.schedule = pretraining_schedule([ScheduleSegment(20, setting.peak, warmup)])
        pieces = setting.task.architecture.vocab_size
        self.optimizer = make_optimizer(setting.section, self.model.axes, pieces=pieces)
        self.mesh = mesh_of(shape)
        ema = setting.ema and EmaSection(decay=setting.ema)
        self.abstract = abstract_state(self.model, self.optimizer, self.mesh, ema=bool(ema))
        self.frozen = frozen_params(task, self.mesh)
        with jax.set_mesh(self.mesh):
            spec = StepSpec(task=task, model=self.model, optimizer=self.optimizer, ema=ema)
            placed = on_mesh(batch, self.mesh)
            self.compiled = lower_train_step(
                spec,
                self.abstract,
                placed,
                self.schedule,
                self.frozen,
                accumulation=setting.accumulation,
            ).compile(compiler_options=QUICK)

    def place(self, state: TrainState) -> TrainState:
        """Shards a copy of a numpy state over the mesh; the step may donate the copy."""
        return jax.tree.map(
            lambda leaf, like: jax.device_put(np.array(leaf), like.sharding), state, self.abstract
        )

    def step(
        self, state: TrainState, batch: HostBatch, limits: StepLimits = UNLIMITED
    ) -> tuple[TrainState, dict[str, tuple[float, float]]]:
        """Runs one step; returns the new state and the metrics as Python floats."""
        with jax.set_mesh(self.mesh):
            placed = on_mesh(batch, self.mesh)
            new, figures = self.compiled(state, placed, limits, self.schedule, self.frozen)
        self.gradient_norms = jax.tree.map(np.sqrt, jax.device_get(figures.gradient_squares))
        return new, {name: (float(s), float(c)) for name, (s, c) in figures.metrics.items()}


@functools.cache
def first_state(setting: Setting, shape: Shape = (1, 1, 1)) -> Any:
    """Returns an initial state as numpy arrays, made by `initialise` on a mesh."""
    task, mesh = setting.task, mesh_of(shape)
    model = define_model(task.build)
    optimizer = make_optimizer(setting.section, model.axes)
    abstract = abstract_state(model, optimizer, mesh, ema=setting.ema is not None)
    params = draw_params(model, abstract.params, seed=1)
    return jax.device_get(initialise(params, optimizer, abstract, seed=1))


@functools.cache
def trainer(setting: Setting, shape: Shape) -> Trainer:
    """Returns a trainer for batches like `small_batch`, compiled once for all tests."""
    return Trainer(setting, shape, small_batch())


Result = tuple[list[float], Any]  # losses of the steps, and the parameters after them


def run_steps(setting: Setting, shape: Shape, steps: int = 5) -> Result:
    """Runs train steps on a mesh.

    Rows have different numbers of masks, so a mean of means over devices or microbatches is wrong.
    """
    run = trainer(setting, shape)
    state = run.place(first_state(dataclasses.replace(setting, dropout=0.0, accumulation=1)))
    losses = []
    for step in range(steps):
        state, metrics = run.step(state, small_batch(seed=step))
        losses.append(metrics["loss"][0])
    return losses, jax.device_get(state.params)


@functools.cache
def one_device(setting: Setting, steps: int = 5) -> Result:
    """Returns the result of `run_steps` on one device."""
    return run_steps(setting, (1, 1, 1), steps)


def assert_same(found: Result, expected: Result) -> None:
    """Asserts equal losses and parameters, up to rounding."""
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    errors = {}
    leaves = jax.tree_util.tree_leaves_with_path(found[1])
    for (path, leaf), other in zip(leaves, jax.tree.leaves(expected[1]), strict=True):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        # The key bias adds a constant to all scores of a query, which softmax cancels. Unless the
        # loss compares scores, its gradient is rounding error and depends on the order of
        # summation, so it only has to stay near 0. With a real gradient, it moves by about PEAK.
        moved = max(np.abs(leaf).max(), np.abs(other).max()) > 0.01 * PEAK
        if moved or not name.endswith(KEY_BIAS):
            errors[name] = relative_error(leaf, other)
    assert len(errors) >= len(leaves) - 2  # a key bias of each network
    assert {name: error for name, error in errors.items() if error > 1e-5} == {}
