"""Compiled programs that the runs of a sweep share."""

from __future__ import annotations

import functools
from typing import NamedTuple

from bert_jax.tasks.epoch_plan import BatchShapes, EpochPlan
from bert_jax.tasks.predictor import Predictor
from bert_jax.tasks.training.setup import TrainingSetup, make_predictor
from bert_jax.train.compiled import StepPrograms, lower_train_step
from bert_jax.train.step import StepSpec


class SharedSteps(NamedTuple):
    """The train step of runs whose batches have the same shapes."""

    spec: StepSpec
    programs: StepPrograms


class FinetunePrograms:
    """The programs of runs that differ in seed, learning rate and epochs alone.

    The state holds the seed's key, the schedule is an argument of the step: a second run compiles
    nothing, unless more epochs pay for batches of other shapes.
    """

    def __init__(self, setup: TrainingSetup) -> None:
        """Compiles nothing yet.

        Args:
            setup: of any of the runs.
        """
        self.predictor: Predictor = make_predictor(setup)
        self._setup = setup
        self._steps: dict[frozenset[BatchShapes], SharedSteps] = {}

    def steps(self, plan: EpochPlan) -> SharedSteps:
        """Returns the train step of runs with such batches.

        Args:
            plan: of a run's batches; their shapes do not depend on the seed.
        """
        setup, shapes = self._setup, plan.shapes
        if shapes not in self._steps:
            optimizer = setup.optimizer(steps_per_epoch=plan.steps)
            spec = StepSpec(task=setup.task, model=setup.model, optimizer=optimizer)
            lower = functools.partial(
                lower_train_step, spec, accumulation=setup.section.accumulation
            )
            self._steps[shapes] = SharedSteps(spec, StepPrograms(lower, shapes=len(shapes)))
        return self._steps[shapes]
