"""Evaluations during a run. If a signal interrupts an evaluation, the resumed run repeats it."""

import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.errors import Diverged, UserError, commas
from bert_jax.narration import doing
from bert_jax.parallel.compiling import compiling
from bert_jax.parallel.stop_signal import STOP, EvaluationCut
from bert_jax.task import Batch, Params, Sums, Task
from bert_jax.train import metrics as sums_of
from bert_jax.train.checkpoint_manifest import EMA, SelectionScore
from bert_jax.train.compiled import (
    BatchShape,
    describe_batch,
    lower_evaluation_step,
    shape_of,
)
from bert_jax.train.evaluation_section import score_name
from bert_jax.train.hooks import Pause
from bert_jax.train.metrics_writer import VALIDATION
from bert_jax.train.output import Output
from bert_jax.train.prefetch import prefetch_to_device, waiting_for_input
from bert_jax.train.progress import StepTracker, TrainProgress
from bert_jax.train.spec import HostBatches, Phase, TrainSpec
from bert_jax.train.state import ModelDefinition, TrainState, abstract_params, laid_out_as
from bert_jax.train.step import make_evaluation_step


class HeldOut(NamedTuple):
    """The examples of an evaluation."""

    open_batches: Callable[[], HostBatches]  # opens one pass over the examples
    batch: Batch  # shapes of a batch
    lacking: Collection[str] = ()  # names of metrics for which the examples have no data


class Evaluator:
    """Computes scores on one or several held-out sets. Call its methods under `jax.set_mesh`."""

    def __init__(
        self,
        task: Task,
        model: ModelDefinition,
        sets: Mapping[str, HeldOut],
        mesh: Mesh,
        *,
        shares: int,
    ) -> None:
        """Compiles and opens nothing yet.

        Args:
            task: task with the loss and the scores.
            model: model of the task.
            sets: held-out sets by name. The name begins the names of the scores; see `score_name`.
            mesh: mesh of the run.
            shares: number of host shares per batch (`HostShare.count`).
        """
        self._task, self._model, self._mesh = task, model, mesh
        self._sets, self._shares = sets, shares
        self._programs: dict[BatchShape, jax.stages.Compiled] = {}

    def compile(self, params: Params, frozen: Params) -> None:
        """Compiles the programs of all sets; only the first call takes time.

        The arguments may be arrays or ShapeDtypeStructs.
        """
        for held_out in self._sets.values():
            self._program(held_out.batch, params, frozen)

    def score_names(self, frozen: Params) -> list[str]:
        """Returns the names of the scores, without computing them."""
        step, first = make_evaluation_step(self._task, self._model), next(iter(self._sets.values()))
        sums = jax.eval_shape(step, self._model.params, first.batch, frozen, np.uint32(0))
        return [
            score_name(name, score)
            for name, held_out in self._sets.items()
            for score in self._task.score(
                {each: (1.0, 0.0 if each in held_out.lacking else 1.0) for each in sums}
            )
        ]

    def __call__(self, params: Params, frozen: Params) -> dict[str, float]:
        """Returns the scores of parameters and frozen parameters on all sets.

        Raises Diverged if a score is not finite.
        """
        return {
            score_name(name, score): value
            for name, held_out in self._sets.items()
            for score, value in self._score(name, held_out, params, frozen).items()
        }

    def _program(self, batch: Batch, params: Params, frozen: Params) -> jax.stages.Compiled:
        """Returns the program for the shapes of `batch`, which sets share."""
        shape = shape_of(batch)
        if shape not in self._programs:
            with compiling(f"the evaluation ({describe_batch(batch)})"):
                lowered = lower_evaluation_step(
                    self._task, self._model, self._mesh, params, batch, frozen
                )
                self._programs[shape] = lowered.compile()
        return self._programs[shape]

    def _score(
        self, name: str, held_out: HeldOut, params: Params, frozen: Params
    ) -> Mapping[str, float]:
        totals: Sums = {}
        program = self._program(held_out.batch, params, frozen)
        with contextlib.ExitStack() as opened:
            with waiting_for_input():
                rows = opened.enter_context(held_out.open_batches())
            for index, fed in enumerate(prefetch_to_device(rows, self._mesh, shares=self._shares)):
                STOP.between_batches()
                sums = program(params, fed.batch, frozen, np.uint32(index))
                totals = sums_of.add(totals, sums_of.to_host(sums))
        bad = [
            score_name(name, each) for each, sums in totals.items() if not np.isfinite(sums).all()
        ]
        if bad:
            raise Diverged(
                "evaluation.diverged", f"found NaN or infinity in {commas(bad)}", place="evaluation"
            )
        return self._task.score(totals)


class Evaluations:
    """Evaluates the parameters of a run and reports the scores; a hook of the train loop.

    Attributes:
        scores: scores of the last evaluation.
    """

    def __init__(self, spec: TrainSpec, tracker: StepTracker, output: Output) -> None:
        self._spec, self._tracker, self._output = spec, tracker, output
        self.scores: Mapping[str, float] = {}
        self._cut = False  # whether a signal interrupted an evaluation

    def __call__(self, pause: Pause) -> None:
        """Evaluates if an evaluation is due."""
        if pause.due.evaluate:
            pause.score = self._run(pause.phase, pause.state)
            pause.interrupted = pause.interrupted or self._cut

    def make_up(self, state: TrainState) -> bool:
        """Evaluates the restored or initial state if its evaluation is missing.

        Returns whether a signal interrupted this evaluation.
        """
        progress = self._tracker.progress
        if progress.unevaluated:
            score = self._run(self._spec.phases[progress.phase], state)
            progress.unevaluated = self._cut
            if score is not None and progress.step:  # there is no checkpoint before the first step
                self._spec.checkpoints.on_disk.add_score(progress.step, score)
        return self._cut

    def _run(self, phase: Phase, state: TrainState) -> SelectionScore | None:
        """Evaluates; returns None without data, after a signal, or if a score is not finite.

        If a score is not finite at the last step, raises Diverged. Before the last step, the
        bad-step policy handles divergence.
        """
        if phase.evaluate is None:
            return None
        progress, output = self._tracker.progress, self._output
        output.milestones.evaluating(progress.step)
        try:
            with output.watch.on("evaluate"), STOP.cutting(), doing("evaluating"):
                self.scores = scores = self._scores(phase, state)
        except EvaluationCut:
            progress.unevaluated = self._cut = True
            return None
        except Diverged as error:
            error = error.located(f"step {progress.step}")
            if progress.step >= self._tracker.last_step or self._needs_start:
                raise error from None
            output.display.say(str(error), style="bold red")
            return None
        output.milestones.evaluated(progress.step, scores)
        output.writer.write(VALIDATION, progress.step, scores)
        remark = phase.watch.remark(scores) if phase.watch else ""
        output.display.evaluated(progress.step, scores, remark)
        if progress.position is None:
            progress.start, progress.start_data = {**scores}, phase.validation
            check_start(self._spec, progress)
        score = self._spec.selection.score(scores, phase=progress.phase, data=phase.validation)
        self._tracker.record_evaluation(scores, score)
        return score

    @property
    def _needs_start(self) -> bool:
        """Whether rules compare later scores with this evaluation."""
        return self._tracker.progress.position is None and bool(self._spec.intervals.at_most)

    def _scores(self, phase: Phase, state: TrainState) -> Mapping[str, float]:
        """Returns the scores of a phase's evaluation.

        Before the first step, adds the scores of later objectives if `at_most` compares them.
        """
        scores = self._score(phase, state)
        for later in self._spec.phases[self._tracker.progress.phase + 1 :]:
            missing = self._spec.intervals.at_most.keys() - scores.keys()
            if self._needs_start and missing and later.evaluate is not None:
                scores = {**self._score(later, state), **scores}
        return scores

    def _score(self, phase: Phase, state: TrainState) -> Mapping[str, float]:
        """Returns the scores of the parameters and of their average, see `Phase.scored`."""
        assert phase.evaluate is not None
        whole, scores = abstract_params(phase.step.model, self._spec.mesh), {}
        trees: dict[str, Any] = {"": state.params, EMA: state.ema}
        for name in phase.scored:
            params = laid_out_as(trees[name], whole)  # gather once, not for each batch
            found = phase.evaluate(params, self._spec.frozen.params)
            del params  # before the next copy
            scores |= {score_name(name, score): value for score, value in found.items()}
        return scores


def check_start(spec: TrainSpec, progress: TrainProgress) -> None:
    """Raises UserError if the start lacks scores that `at_most` compares, or had other data."""
    names, data = spec.intervals.at_most.keys(), spec.phases[progress.phase].validation
    if missing := names if progress.start_data != data else names - progress.start.keys():
        raise UserError(
            "evaluation.no_start",
            f"{spec.run_dir} did not evaluate {commas(sorted(missing))} at its start. Remove it.",
            place="train.evaluation.at_most",
        )
