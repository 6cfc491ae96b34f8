"""Runs that differ in seed and learning rate alone, computed by one program."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.typing import ArrayLike

from bert_jax.data.loader.loader import background_batches
from bert_jax.data.rows.collate import count_tokens
from bert_jax.parallel.rules import runs_sharding
from bert_jax.task import HostBatch, Metrics, StepBatch
from bert_jax.tasks.batches import TrainBatches
from bert_jax.tasks.task import FinetuneTask
from bert_jax.train.compiled import StepPrograms
from bert_jax.train.state import (
    ModelDefinition,
    TrainState,
    abstract_params,
    abstract_state,
    define_model,
    initialise,
    run_key,
)
from bert_jax.train.step import RngName, make_train_step

Tree = Any  # nested containers of arrays

# Learning rate [] → the optimizer of a run, and its learning rate by step.
MakeOptimizer = Callable[[ArrayLike], tuple[optax.GradientTransformation, optax.Schedule]]


class StackedBatch(NamedTuple):
    """One batch of every run, on the devices."""

    batch: StepBatch  # [R, B, …]
    tokens: int  # that are not padding
    waited: float  # seconds the loop stood still for it


@dataclasses.dataclass(frozen=True, kw_only=True)
class SideBySide:
    """R runs of one shape as one program, mapped over seeds and learning rates.

    Arrays of a run get a leading axis R, which is dealt over the devices (`runs_sharding`); a run
    never leaves its device. With the threefry generator each run is the run that the ordinary loop
    makes of its seed and learning rate, up to rounding. The hardware generators (rbg, unsafe_rbg)
    draw the bits of all runs from one stream: dropout is as random, but its bits are others.

    Attributes:
        task: the same for all runs.
        make_optimizer: by learning rate.
        seeds: of each run, [R].
        learning_rates: of each run, [R].
        batches: of each seed; at a step all have one shape.
        accumulation: microbatches per step.
        rng: the generator of dropout bits.
        mesh: of one process.
    """

    task: FinetuneTask
    make_optimizer: MakeOptimizer
    seeds: Sequence[int]
    learning_rates: Sequence[float]
    batches: Mapping[int, TrainBatches]
    accumulation: int
    rng: RngName
    mesh: Mesh

    @functools.cached_property
    def model(self) -> ModelDefinition:
        """The structure of one run's model."""
        return define_model(self.task.build)

    @functools.cached_property
    def sharding(self) -> NamedSharding:
        """How every array lies on the devices."""
        return runs_sharding(self.mesh, len(self.seeds))

    def start(self, from_fresh: Callable[[Tree], Tree]) -> TrainState:
        """Returns the first state of all runs, each what the ordinary loop begins with.

        Args:
            from_fresh: freshly drawn parameters → those to start from.
        """
        untrained = optax.identity()
        abstract = abstract_state(self.model, untrained, self.mesh)
        by_seed = {}
        for seed in dict.fromkeys(self.seeds):
            with jax.set_mesh(self.mesh):
                fresh = initialise(self.task, untrained, abstract, seed=seed).params
            by_seed[seed] = from_fresh(fresh)
        optimizer, _ = self.make_optimizer(0.0)
        params = jax.tree.map(self._stack, *(by_seed[seed] for seed in self.seeds))
        runs = len(self.seeds)
        return TrainState(
            step=jax.device_put(np.zeros(runs, np.int32), self.sharding),
            rng=self._stack(*(run_key(seed) for seed in self.seeds)),
            params=params,
            opt_state=jax.jit(jax.vmap(optimizer.init), out_shardings=self.sharding)(params),
            healthy=jax.device_put(np.ones(runs, np.bool_), self.sharding),
        )

    def programs(self) -> StepPrograms:
        """Returns ``step(state, batch) -> (state, metrics)`` of all runs; each metric is [R]."""
        shapes = max(batches.plan.shapes for batches in self.batches.values())
        return StepPrograms(self.lower, shapes=shapes)

    def feed(self) -> Generator[StackedBatch, None, None]:
        """Yields batches of all runs without end, made ahead in the background."""

        def make(step: int) -> HostBatch:
            by_seed = {seed: batches.make(step) for seed, batches in self.batches.items()}
            return jax.tree.map(lambda *rows: np.stack(rows), *(by_seed[s] for s in self.seeds))

        with background_batches(make, first_step=0) as rows:
            while True:
                started = time.perf_counter()
                host = next(rows)
                waited = time.perf_counter() - started
                batch = jax.device_put(host, self.sharding)
                yield StackedBatch(batch, count_tokens(host), waited)

    def params_of(self, params: Tree, run: int) -> Tree:
        """Returns one run's part of stacked parameters, laid out as the model's own.

        Args:
            params: [R, …].
            run: which.
        """
        layout = abstract_params(self.model, self.mesh)
        return jax.tree.map(
            lambda leaf, like: jax.device_put(_slice_of(leaf, run), like.sharding), params, layout
        )

    def _stack(self, *leaves: jax.Array) -> jax.Array:
        """Stacks what runs have of one parameter; what they share is not copied on the host."""
        first = np.asarray(jax.device_get(leaves[0]))
        if all(leaf is leaves[0] for leaf in leaves):
            stacked = np.broadcast_to(first, (len(leaves), *first.shape))
        else:
            stacked = np.stack([np.asarray(jax.device_get(leaf)) for leaf in leaves])
        return jax.device_put(stacked, self.sharding)

    def lower(self, state: TrainState, batch: StepBatch) -> jax.stages.Lowered:
        """Returns one step of all runs, lowered for the shapes of these arrays."""
        # No mesh is set: the layouts that the model's code asks for are those of a single run.
        peaks = jnp.asarray(self.learning_rates, jnp.float32)

        def step(state: TrainState, batch: StepBatch) -> tuple[TrainState, Metrics]:
            return jax.vmap(self._step)(state, batch, peaks)

        outputs = (self.sharding, self.sharding)
        return jax.jit(step, donate_argnums=0, out_shardings=outputs).lower(state, batch)

    def _step(
        self, state: TrainState, batch: StepBatch, peak: jax.Array
    ) -> tuple[TrainState, Metrics]:
        optimizer, schedule = self.make_optimizer(peak)
        step = make_train_step(
            self.task,
            self.model,
            optimizer,
            schedule,
            accumulation=self.accumulation,
            rng=self.rng,
        )
        changed, metrics = step(state, batch)
        # Also of a run that froze: the hardware generators take the first run's key for all.
        return changed._replace(step=state.step + 1), metrics


@functools.partial(jax.jit, donate_argnums=0)
def keep_better(best: Tree, params: Tree, better: jax.Array) -> Tree:
    """Returns the parameters of those runs that are better now, and of the others the old ones.

    Args:
        best: [R, …]; donated.
        params: [R, …].
        better: bool [R].
    """

    def choose(old: jax.Array, new: jax.Array) -> jax.Array:
        return jnp.where(better.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(choose, best, params)


def _slice_of(leaf: jax.Array, run: int) -> jax.Array:
    """Returns ``leaf[run]`` on the device that has it."""
    for shard in leaf.addressable_shards:
        start, stop, _ = shard.index[0].indices(leaf.shape[0])
        if start <= run < stop:
            return shard.data[run - start]
    raise ValueError(f"run {run}: none of {leaf.shape[0]} runs here")
