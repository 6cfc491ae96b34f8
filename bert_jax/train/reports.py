"""What a run tells of its steps: scores and speed since the last report."""

from bert_jax.task import Task
from bert_jax.train import metrics as sums_of
from bert_jax.train.output import Output
from bert_jax.train.prefetch import DeviceBatch
from bert_jax.train.spec import Phase
from bert_jax.train.step import STEP_METRICS
from bert_jax.train.step_tracker import StepTracker
from bert_jax.train.throughput import Meter


class PhaseReports:
    """The reports of one phase."""

    def __init__(self, phase: Phase, task: Task, tracker: StepTracker, output: Output) -> None:
        """Says what is to be expected, and starts the clock."""
        self._phase, self._task, self._tracker, self._output = phase, task, tracker, output
        self._meter = Meter(flops_per_row=phase.flops_per_row)
        if phase.watch:
            output.display.say(phase.watch.expectation, style="dim")

    def add(self, batch: DeviceBatch) -> None:
        """Adds a step that is done, and reports when it is time."""
        self._meter.add(tokens=batch.tokens, rows=self._phase.batch_size, waited=batch.waited)
        if self._tracker.report_due:
            self._report()

    def restart(self) -> None:
        """Starts the clock again, so that a pause for evaluation is no slow training."""
        self._meter.restart()

    def _report(self) -> None:
        output, watch = self._output, self._phase.watch
        step, window = self._tracker.progress.step, self._tracker.take_window()
        if not window:
            return  # all were skipped
        scores = self._task.score(window) | sums_of.select(window, *STEP_METRICS)
        throughput = self._meter.read()
        output.writer.write("train", step, scores)
        speed = {name: value for name, value in throughput._asdict().items() if value is not None}
        output.writer.write("speed", step, speed)
        output.watch.write(output.writer, step=step)
        output.display.report(step, scores, throughput)
        if watch and (warning := watch.warn(step=step, scores=scores)):
            output.display.say(warning, style="yellow")
