"""Everywhere a run's figures go while it trains: files, terminal, the account of its time."""

import functools
from typing import NamedTuple

import jax
from rich.console import Console

from bert_jax.files.atomic import refusal_of
from bert_jax.narration import narrator_of
from bert_jax.task import Task
from bert_jax.train import metrics as sums_of
from bert_jax.train.example_log import ExampleLog
from bert_jax.train.goodput import Stopwatch
from bert_jax.train.heartbeat import with_heartbeat
from bert_jax.train.metrics import Meter
from bert_jax.train.prefetch import DeviceBatch
from bert_jax.train.progress import TrainProgress
from bert_jax.train.progress_display import ProgressDisplay
from bert_jax.train.spec import Phase, TrainSpec
from bert_jax.train.step import STEP_METRICS
from bert_jax.train.step_tracker import StepTracker
from bert_jax.train.time_account import describe_goodput
from bert_jax.train.writer import RunWriter, Writer


class Output(NamedTuple):
    """Where figures go."""

    writer: Writer
    display: ProgressDisplay
    examples: ExampleLog
    watch: Stopwatch

    def flush(self) -> None:
        """Makes outlive this process what a checkpoint counts as written."""
        self.writer.flush()
        self.examples.flush()

    def rewind(self, step: int) -> None:
        """Drops what was written of steps beyond one: the run has gone back to it."""
        self.writer.rewind(step)
        self.examples.rewind(step)
        self.watch.rewind(step)

    def tell_time(self, *, step: int, finished: bool) -> None:
        """Writes and shows where the time went; `finished`: the run has come to its end."""
        self.watch.write(self.writer, step=step, finished=finished)
        account = describe_goodput(self.watch.read())
        self.display.close()
        self.display.say(f"where the time went: {account}", style="dim")
        if finished:
            self.display.say(f"done: {step:,} steps")

    def close(self) -> None:
        """Writes out what is buffered, or says why not; the terminal keeps its last line.

        Raises nothing: a run may be ending with an error, which counts.
        """
        for close in (self.display.close, self.writer.close, self.examples.close):
            if (reason := refusal_of(close)) is not None:
                self.display.say(reason, style="bold red")


def open_output(
    spec: TrainSpec, watch: Stopwatch, console: Console, *, progress: TrainProgress, last: int
) -> Output:
    """Opens it all, and drops from files what tells of steps that will be done again."""
    first = progress.step
    display = ProgressDisplay(narrator_of(console), first_step=first, total_steps=last)
    watch.resume(first)
    examples = ExampleLog(
        spec.run_dir,
        resume_step=first,
        share=spec.share,
        enabled=spec.example_log,
        say=display.say,
    )
    # Figures are written once, by the first process.
    writer = Writer()
    if jax.process_index() == 0:
        writer = RunWriter(
            spec.run_dir,
            resume_step=first,
            evaluated=not progress.unevaluated,
            say=display.say,
            trackers=spec.trackers,
            sending=functools.partial(watch.on, "save"),  # a bucket may take minutes, no step does
        )
    return Output(with_heartbeat(writer, say=display.say), display, examples, watch)


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
