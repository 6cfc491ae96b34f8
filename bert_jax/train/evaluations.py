"""Evaluations during a run. If a signal interrupts an evaluation, the resumed run repeats it."""

import contextlib
from collections.abc import Callable, Mapping

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.errors import Diverged, commas
from bert_jax.narration import doing
from bert_jax.parallel.compiling import compiling
from bert_jax.parallel.stop_signal import STOP, EvaluationCut
from bert_jax.task import Batch, Params, Sums, Task
from bert_jax.train import metrics as sums_of
from bert_jax.train.checkpoint_manifest import SelectionScore
from bert_jax.train.compiled import describe_batch, lower_evaluation_step
from bert_jax.train.hooks import Pause
from bert_jax.train.metrics_writer import VALIDATION
from bert_jax.train.output import Output
from bert_jax.train.prefetch import prefetch_to_device, waiting_for_input
from bert_jax.train.progress import StepTracker
from bert_jax.train.spec import HostBatches, Phase, TrainSpec
from bert_jax.train.state import ModelDefinition, abstract_params, laid_out_as
from bert_jax.train.step import make_evaluation_step


class Evaluator:
    """Computes scores on a split. Call its methods under `jax.set_mesh`."""

    def __init__(
        self,
        task: Task,
        model: ModelDefinition,
        open_batches: Callable[[], HostBatches],
        mesh: Mesh,
        *,
        batch: Batch,
        shares: int,
    ) -> None:
        """Compiles and opens nothing yet.

        Args:
            task: task with the loss and the scores.
            model: model of the task.
            open_batches: opens one pass over the split.
            mesh: mesh of the run.
            batch: shapes of a batch.
            shares: number of host shares per batch (`HostShare.count`).
        """
        self._task, self._model, self._mesh = task, model, mesh
        self._open_batches, self._batch, self._shares = open_batches, batch, shares
        self._compiled: jax.stages.Compiled | None = None

    def compile(self, params: Params, frozen: Params) -> jax.stages.Compiled:
        """Returns the program; the first call compiles it.

        The arguments may be arrays or ShapeDtypeStructs.
        """
        if self._compiled is None:
            with compiling(f"the evaluation ({describe_batch(self._batch)})"):
                lowered = lower_evaluation_step(
                    self._task, self._model, self._mesh, params, self._batch, frozen
                )
                self._compiled = lowered.compile()
        return self._compiled

    def score_names(self, frozen: Params) -> list[str]:
        """Returns the names of the scores, without computing them."""
        step = make_evaluation_step(self._task, self._model)
        sums = jax.eval_shape(step, self._model.params, self._batch, frozen, np.uint32(0))
        return list(self._task.score({name: (1.0, 1.0) for name in sums}))

    def __call__(self, params: Params, frozen: Params) -> dict[str, float]:
        """Returns the scores of parameters and frozen parameters.

        Raises Diverged if a score is not finite.
        """
        totals: Sums = {}
        program = self.compile(params, frozen)
        with contextlib.ExitStack() as opened:
            with waiting_for_input():
                rows = opened.enter_context(self._open_batches())
            for index, fed in enumerate(prefetch_to_device(rows, self._mesh, shares=self._shares)):
                STOP.between_batches()
                sums = program(params, fed.batch, frozen, np.uint32(index))
                totals = sums_of.add(totals, sums_of.to_host(sums))
        lost = [name for name, sums in totals.items() if not np.isfinite(sums).all()]
        if lost:
            raise Diverged(
                "evaluation.diverged",
                f"found NaN or infinity in {commas(lost)}, allowed: finite numbers. The model has "
                "diverged.",
                place="evaluation",
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
            pause.score = self._run(pause.phase, pause.state.params)
            pause.interrupted = pause.interrupted or self._cut

    def make_up(self, params: Params) -> bool:
        """Evaluates the restored or initial parameters if their evaluation is missing.

        Returns whether a signal interrupted this evaluation.
        """
        progress = self._tracker.progress
        if progress.unevaluated:
            score = self._run(self._spec.phases[progress.phase], params)
            progress.unevaluated = self._cut
            if score is not None and progress.step:  # there is no checkpoint before the first step
                self._spec.checkpoints.on_disk.add_score(progress.step, score)
        return self._cut

    def _run(self, phase: Phase, params: Params) -> SelectionScore | None:
        """Evaluates; returns None without data, after a signal, or if a score is not finite.

        If a score is not finite at the last step, raises Diverged. Before the last step, the
        bad-step policy handles divergence.
        """
        if phase.evaluate is None:
            return None
        progress, output = self._tracker.progress, self._output
        output.milestones.evaluating(progress.step)
        whole = abstract_params(phase.step.model, self._spec.mesh)  # gather once per call
        try:
            with output.watch.on("evaluate"), STOP.cutting(), doing("evaluating"):
                self.scores = scores = phase.evaluate(
                    laid_out_as(params, whole), self._spec.frozen.params
                )
        except EvaluationCut:
            progress.unevaluated = self._cut = True
            return None
        except Diverged as error:
            error = error.located(f"step {progress.step}")
            if progress.step >= self._tracker.last_step:
                raise error from None
            output.display.say(str(error), style="bold red")
            return None
        output.milestones.evaluated(progress.step, scores)
        output.writer.write(VALIDATION, progress.step, scores)
        remark = phase.watch.remark(scores) if phase.watch else ""
        output.display.evaluated(progress.step, scores, remark)
        score = self._spec.selection.score(scores, phase=progress.phase, data=phase.validation)
        self._tracker.record_evaluation(scores, score)
        return score
