"""Compiled programs that the runs of a sweep share."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from bert_jax.data.rows.collate import parts_of
from bert_jax.parallel.rules import replicated
from bert_jax.task import StepBatch
from bert_jax.tasks.batches import EpochPlan
from bert_jax.tasks.predictor import Predictor
from bert_jax.tasks.training.setup import TrainingSetup, make_predictor
from bert_jax.train.compiled import StepPrograms, lower_step
from bert_jax.train.state import TrainState
from bert_jax.train.step import (
    StepFigures,
    StepLimits,
    StepSpec,
    TrainStep,
    make_train_step,
)

PEAK = "peak"  # the learning rate, float32 []: travels behind the parts of a batch


class FinetunePrograms:
    """The programs of runs that differ in seed, learning rate and epochs alone.

    The train step takes the peak learning rate as an argument and the state holds the seed's key,
    so a second run with the same number of epochs compiles nothing.
    """

    def __init__(self, setup: TrainingSetup) -> None:
        """Compiles nothing yet.

        Args:
            setup: of any of the runs.
        """
        self.predictor: Predictor = make_predictor(setup)
        self._steps: dict[int, SharedSteps] = {}

    def steps(self, setup: TrainingSetup, plan: EpochPlan) -> SharedSteps:
        """Returns the train step of runs with as many epochs as `setup`.

        Args:
            setup: of a run.
            plan: of its batches; their shapes do not depend on the seed.
        """
        epochs = setup.section.epochs
        if epochs not in self._steps:
            self._steps[epochs] = SharedSteps(setup, plan)
        return self._steps[epochs]


class SharedSteps:
    """The train step of runs that differ in seed and learning rate alone."""

    def __init__(self, setup: TrainingSetup, plan: EpochPlan) -> None:
        """Compiles nothing yet.

        Args:
            setup: of any of the runs.
            plan: of its batches.
        """
        self._setup, self._steps_per_epoch = setup, plan.steps
        # The peak is no part of the optimizer's state: this one initialises that of every run.
        optimizer, schedule = setup.optimizer(steps_per_epoch=plan.steps)
        self.spec = StepSpec(
            task=setup.task,
            model=setup.model,
            optimizer=optimizer,
            schedule=schedule,
        )
        self._programs = StepPrograms(self._lower, shapes=plan.shapes)

    def at(self, peak: float) -> TrainStep:
        """Returns the step of a run with this peak learning rate."""
        rate = jax.device_put(np.float32(peak), replicated(self._setup.mesh))
        return lambda state, batch, limits: self._programs(
            state, (*parts_of(batch), {PEAK: rate}), limits
        )

    @property
    def compiled(self) -> int:
        """The number of programs compiled so far."""
        return self._programs.compiled

    def _lower(self, state: TrainState, batch: StepBatch) -> jax.stages.Lowered:
        return lower_step(self._step, state, batch)

    def _step(
        self, state: TrainState, batch: StepBatch, limits: StepLimits
    ) -> tuple[TrainState, StepFigures]:
        *parts, rate = parts_of(batch)
        setup = self._setup
        optimizer, schedule = setup.optimizer(
            steps_per_epoch=self._steps_per_epoch, peak=rate[PEAK]
        )
        spec = dataclasses.replace(self.spec, optimizer=optimizer, schedule=schedule)
        step = make_train_step(spec, accumulation=setup.section.accumulation)
        return step(state, tuple(parts), limits)
