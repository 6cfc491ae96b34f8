"""The output of a run: files, terminal, and the account of its time."""

from typing import NamedTuple

import jax
from rich.console import Console

from bert_jax.files.atomic import refusal_of
from bert_jax.narration import narrator_of
from bert_jax.task import Task
from bert_jax.train.goodput import Stopwatch
from bert_jax.train.metrics import Meter
from bert_jax.train.metrics_writer import GOODPUT, RunWriter, Writer
from bert_jax.train.prefetch import DeviceBatch
from bert_jax.train.progress import StepTracker, TrainProgress
from bert_jax.train.progress_display import ProgressDisplay
from bert_jax.train.spec import Milestones, Phase, TrainSpec
from bert_jax.train.step import STEP_METRICS
from bert_jax.train.time_account import describe_goodput


class Output(NamedTuple):
    """The destinations of a run's metrics, messages and milestones."""

    writer: Writer
    display: ProgressDisplay
    watch: Stopwatch
    milestones: Milestones

    def write_time(self, step: int, *, finished: bool = False) -> None:
        """Writes the account of time; `finished` is whether the run has ended."""
        self.writer.write(GOODPUT, step, self.watch.figures(finished=finished))

    def flush(self) -> None:
        """Writes all buffered metrics to files. Call it before a checkpoint."""
        self.writer.flush()
        self.milestones.flush()

    def rewind(self, step: int) -> None:
        """After a rollback to `step`, drops the metrics of later steps."""
        self.writer.rewind(step)
        self.watch.rewind(step)

    def tell_time(self, *, step: int, finished: bool) -> None:
        """Writes and shows the account of time; `finished` is whether the run has ended."""
        self.write_time(step, finished=finished)
        account = describe_goodput(self.watch.read())
        self.display.close()
        self.display.say(f"where the time went: {account}", style="dim")
        if finished:
            self.display.say(f"done: {step:,} steps")

    def close(self) -> None:
        """Flushes and closes everything; shows a message if that fails.

        Raises nothing, because an exception here would hide the error that ended the run.
        """
        parts = (self.display, self.writer, self.milestones)
        for close in [part.close for part in parts]:
            if (reason := refusal_of(close)) is not None:
                self.display.say(reason, style="bold red")


def open_output(
    spec: TrainSpec, watch: Stopwatch, console: Console, *, progress: TrainProgress, last: int
) -> Output:
    """Opens the output, and drops metrics of steps that the run will repeat."""
    first = progress.step
    display = ProgressDisplay(narrator_of(console), first_step=first, total_steps=last)
    watch.resume(first)
    writer = Writer(say=display.say)
    if jax.process_index() == 0:
        writer = RunWriter(
            spec.run_dir,
            resume_step=first,
            evaluated=not progress.unevaluated,
            say=display.say,
            trackers=spec.trackers,
        )
    return Output(writer, display, watch, spec.milestones or Milestones())


class PhaseReports:
    """The reports of one phase."""

    def __init__(self, phase: Phase, task: Task, tracker: StepTracker, output: Output) -> None:
        """Shows the expected scores and starts the clock."""
        self._phase, self._task, self._tracker, self._output = phase, task, tracker, output
        self._meter = Meter(flops_per_row=phase.flops_per_row)
        self.restart = self._meter.restart
        if phase.watch:
            trained = phase.pretrained or tracker.progress.step > 0
            output.display.say(phase.watch.expectation(trained=trained), style="dim")

    def ended(self) -> None:
        """Says how much of a mixture the phase has read, at its end or the end of the run."""
        describe, position = self._phase.describe_read, self._tracker.progress.position
        if describe is not None and position is not None:
            self._output.display.say(describe(position))

    def add(self, batch: DeviceBatch) -> None:
        """Adds a finished step, and reports if a report is due."""
        # A batch of a ramp has fewer rows than the phase's. A padded batch has more.
        rows = min(self._phase.batch_size, len(jax.tree.leaves(batch.batch)[0]))
        self._meter.add(tokens=batch.tokens, rows=rows, waited=batch.waited)
        if self._tracker.report_due and (sums := self._tracker.take_window()):
            output, watch, step = self._output, self._phase.watch, self._tracker.progress.step
            rates = {name: sums[name][0] / sums[name][1] for name in STEP_METRICS}
            scores, throughput = self._task.score(sums) | rates, self._meter.read()
            speed = {name: x for name, x in throughput._asdict().items() if x is not None}
            output.writer.write("train", step, scores)
            output.writer.write("speed", step, speed)
            output.write_time(step)
            output.display.report(step, scores, throughput)
            if watch and (warning := watch.warn(step=step, scores=scores)):
                output.display.say(warning, style="yellow")
