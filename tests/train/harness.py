"""A train step built from the real parts, for tests of the step and of meshes."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from bert_jax.objectives.masked_language_model import MaskedLanguageModel
from bert_jax.optim.optimizer import make_optimizer
from bert_jax.optim.schedule import linear_schedule
from bert_jax.optim.sections import OptimizerSection, ScheduleSegment
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.task import HostBatch
from bert_jax.train.compiled import lower_train_step
from bert_jax.train.state import TrainState, abstract_state, define_model, draw_params, initialise
from bert_jax.train.step import StepLimits, StepSpec
from tests.support import on_mesh, small_batch, small_task

PEAK = 1e-2
UNLIMITED = StepLimits()

# Turns off LLVM's optimizations, which would take most of these tests' time. XLA's partitioning
# does not change.
QUICK = {"xla_backend_optimization_level": 0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """Settings of training except the mesh. Hashable, because they are keys of caches."""

    dropout: float = 0.0
    optimizer: str = "adamw"
    accumulation: int = 1
    attention: str = "xla"
    loss: str = "xla"
    unroll: int | None = None
    peak: float = PEAK
    changes: tuple[tuple[str, int], ...] = ()  # architecture overrides

    @property
    def task(self) -> MaskedLanguageModel:
        return small_task(
            execution={
                "attention": self.attention,
                "loss": self.loss,
                "unroll": self.unroll,
            },
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
            **dict(self.changes),
        )

    @property
    def section(self) -> OptimizerSection:
        return OptimizerSection.model_validate(
            {"name": self.optimizer, "learning_rate": self.peak, "warmup_steps": 2}
        )


class Trainer:
    """The compiled train step of a setting on a mesh."""

    def __init__(self, setting: Setting, shape: tuple[int, int, int], batch: HostBatch) -> None:
        task = setting.task
        self.model = define_model(task.build)
        warmup = setting.section.warmup_steps
        self.schedule = linear_schedule([ScheduleSegment(20, setting.peak, warmup)])
        self.optimizer = make_optimizer(setting.section, self.model.axes)
        data, fsdp, tensor = shape
        devices = jax.devices()[: data * fsdp * tensor]
        self.mesh = make_mesh(MeshSection(data=data, fsdp=fsdp, tensor=tensor), devices)
        self.abstract = abstract_state(self.model, self.optimizer, self.mesh)
        with jax.set_mesh(self.mesh):
            spec = StepSpec(task=task, model=self.model, optimizer=self.optimizer)
            placed = on_mesh(batch, self.mesh)
            self.compiled = lower_train_step(
                spec, self.abstract, placed, self.schedule, {}, accumulation=setting.accumulation
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
            new, figures = self.compiled(state, placed, limits, self.schedule, {})
        self.gradient_norms = jax.device_get(figures.gradient_norms)
        return new, {name: (float(s), float(c)) for name, (s, c) in figures.metrics.items()}


@functools.cache
def first_state(setting: Setting, shape: tuple[int, int, int] = (1, 1, 1)) -> Any:
    """Returns an initial state as numpy arrays, made by `initialise` on a mesh."""
    task, (data, fsdp, tensor) = setting.task, shape
    mesh = make_mesh(
        MeshSection(data=data, fsdp=fsdp, tensor=tensor), jax.devices()[: data * fsdp * tensor]
    )
    model = define_model(task.build)
    optimizer = make_optimizer(setting.section, model.axes)
    abstract = abstract_state(model, optimizer, mesh)
    params = draw_params(model, abstract.params, seed=1)
    return jax.device_get(initialise(params, optimizer, abstract, seed=1))


@functools.cache
def trainer(setting: Setting, shape: tuple[int, int, int]) -> Trainer:
    """Returns a trainer for batches like `small_batch`, compiled once for all tests."""
    return Trainer(setting, shape, small_batch())
