"""A run's evaluations: a signal cuts one short, and the next start makes up for it."""

from collections.abc import Mapping

from bert_jax.narration import doing
from bert_jax.parallel.stop_signal import EvaluationCut, StopSignal
from bert_jax.task import Params
from bert_jax.train.manifest import SelectionScore
from bert_jax.train.output import Output
from bert_jax.train.spec import Phase, TrainSpec
from bert_jax.train.step_tracker import StepTracker
from bert_jax.train.writer import VALIDATION


class Evaluations:
    """Evaluates the parameters of a run, and reports.

    Attributes:
        scores: of the last evaluation.
        cut: whether a signal cut one short: save, and stop.
    """

    def __init__(self, spec: TrainSpec, tracker: StepTracker, output: Output) -> None:
        """Evaluates nothing yet."""
        self._spec, self._tracker, self._output = spec, tracker, output
        self.scores: Mapping[str, float] = {}
        self.cut = False

    def run(self, phase: Phase, params: Params, stop: StopSignal) -> SelectionScore | None:
        """Returns the parameters' selection score; None without data, or if a signal came."""
        if phase.evaluate is None:
            return None
        progress, output = self._tracker.progress, self._output
        try:
            with output.watch.on("evaluate"), stop.cutting(), doing("evaluating"):
                self.scores = scores = phase.evaluate(params)
        except EvaluationCut:
            progress.unevaluated = self.cut = True
            return None
        output.writer.write(VALIDATION, progress.step, scores)
        remark = phase.watch.remark(scores) if phase.watch else ""
        output.display.evaluated(progress.step, scores, remark)
        score = self._spec.selection.score(scores, phase=progress.phase, data=phase.validation)
        progress.record_evaluation(score.value, comparison=score.comparison)
        return score

    def make_up(self, params: Params, stop: StopSignal) -> None:
        """Evaluates the checkpoint that the run goes on from, if a signal came before that."""
        progress = self._tracker.progress
        if not progress.unevaluated:
            return
        score = self.run(self._spec.phases[progress.phase], params, stop)
        if not self.cut:
            progress.unevaluated = False
        if score is not None:
            self._spec.checkpoints.add_score(progress.step, score)
