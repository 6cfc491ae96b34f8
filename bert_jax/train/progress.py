"""The progress of a run, and the actions that are due after each step."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import jax
import pydantic

from bert_jax.data.loader.data_position import DataPosition
from bert_jax.task import Sums
from bert_jax.train.agree_with_first_process import from_first_process
from bert_jax.train.bad_steps import StepHistory
from bert_jax.train.checkpoint_manifest import SelectionScore
from bert_jax.train.metrics import add
from bert_jax.train.spec import Intervals, Phase


@dataclasses.dataclass
class TrainProgress:
    """The progress of a run. Checkpoints store its fields by name, so do not rename fields."""

    step: int = 0  # step of the run
    phase: int = 0
    phase_step: int = 0
    position: DataPosition | None = None
    window: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    best_rank: float | None = None  # best selection score so far, smaller is better
    without_better: int = 0  # number of evaluations since the best one
    history: StepHistory = dataclasses.field(default_factory=StepHistory)  # history of the phase
    comparison: str | None = None  # `SelectionScore.comparison` of the best score
    unevaluated: bool = False  # whether the evaluation of this step is missing
    scores: dict[str, float] = dataclasses.field(default_factory=dict)  # this step's, for the rules
    start: dict[str, float] = dataclasses.field(default_factory=dict)  # before the first step
    start_data: str = ""  # `Phase.validation` of the scores in `start`
    frozen: dict[str, str] = dataclasses.field(default_factory=dict)  # hashes of frozen models
    # Settings of the architecture in which the phase of the last step differs from config.yaml
    architecture: dict[str, float] = dataclasses.field(default_factory=dict)
    causal: bool = False  # whether attention was left to right in the last step

    @classmethod
    def at(cls, step: int, phases: Sequence[int]) -> TrainProgress:
        """Returns the progress after `step` steps, without a data position.

        `phases` has the number of steps of each phase. For example, ``TrainProgress.at(120, [100,
        50])`` is in the second phase, after 20 of its steps.
        """
        ends = list(itertools.accumulate(phases))
        phase = bisect.bisect_right(ends, step)
        return cls(step=step, phase=phase, phase_step=step - (ends[phase] - phases[phase]))

    def record_evaluation(self, score: SelectionScore) -> None:
        """Updates the best score, and the number of evaluations since the best one."""
        best = self.best_rank if self.comparison in (score.comparison, None) else None
        self.comparison = score.comparison
        if best is None or score.value < best:
            self.best_rank, self.without_better = score.value, 0
        else:
            self.without_better += 1

    def start_phase(self, index: int) -> None:
        """Moves to the first step of a later phase."""
        self.phase, self.phase_step, self.position = index, 0, None
        self.history = StepHistory()

    def to_json(self) -> dict[str, Any]:
        """Returns the progress as plain JSON."""
        optional = ("frozen", "architecture", "causal", "scores", "start", "start_data")
        absent = {name for name in optional if not getattr(self, name)}
        return _PLAIN.dump_python(self, exclude=absent)

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> TrainProgress:
        """Returns the progress from the result of `to_json`."""
        return _PLAIN.validate_python(saved)


_PLAIN: Final = pydantic.TypeAdapter(TrainProgress)


class DueActions(NamedTuple):
    """The actions due after a step, except reports. The devices wait for them."""

    evaluate: bool
    save: bool
    stop: bool  # whether a signal ends the run early
    end_phase: bool
    compare: bool = False  # whether to compare the replicas of the state

    @property
    def anything(self) -> bool:
        """Whether to finish the step before the next one starts."""
        return self.compare or self.evaluate or self.save


class StepTracker:
    """Counts steps and phases, and decides which actions are due."""

    def __init__(
        self, progress: TrainProgress, *, phases: Sequence[Phase], intervals: Intervals
    ) -> None:
        """Continues from `progress`, which is updated in place."""
        self.progress = progress
        self._phases, self._intervals = phases, intervals
        self._batch_offset = 0
        self._saved = time.monotonic()

    @property
    def last_step(self) -> int:
        """The last step of the run."""
        progress = self.progress
        ahead = sum(phase.steps for phase in self._phases[progress.phase :])
        return progress.step - progress.phase_step + ahead

    @property
    def out_of_patience(self) -> bool:
        """Whether `patience` consecutive evaluations brought no improvement."""
        patience = self._intervals.patience
        return patience is not None and self.progress.without_better >= patience

    @property
    def target_reached(self) -> bool:
        """Whether this step's evaluation meets `stop_at`. Evaluations before training do not."""
        rule, progress = self._intervals.stop_at, self.progress
        return rule is not None and progress.step > 0 and rule.is_met(progress.scores)

    @property
    def rises(self) -> dict[str, float]:
        """Rises of losses above `at_most` since the start, in this step's evaluation."""
        start, scores = self.progress.start, self.progress.scores
        return {
            name: scores[name] - start[name]
            for name, limit in self._intervals.at_most.items()
            if name in scores and scores[name] - start[name] > limit
        }

    @property
    def ended_early(self) -> bool:
        """Whether evaluations end the run before its last step."""
        above = self._intervals.stop_above and bool(self.rises)
        return self.out_of_patience or self.target_reached or above

    @property
    def next_evaluation(self) -> int:
        """The step of the next evaluation, or the last step of the run."""
        step, every = self.progress.step, self._intervals.evaluate_every
        return min(self.last_step, step + every - step % every) if every else self.last_step

    def record_evaluation(self, scores: Mapping[str, float], score: SelectionScore | None) -> None:
        """Records this step's scores and its selection score, if the phase has one."""
        if score is not None:
            self.progress.record_evaluation(score)
        rule, names = self._intervals.stop_at, {*self._intervals.at_most}
        names |= {rule.metric} if rule else set()
        self.progress.scores = {name: scores[name] for name in sorted(names) if name in scores}

    def remaining_phases(self) -> Iterator[Phase]:
        """Yields the phases that have steps left, and moves the progress to each."""
        for index in range(self.progress.phase, len(self._phases)):
            if self.ended_early:
                return
            if index > self.progress.phase:
                self.progress.start_phase(index)
            if self.progress.phase_step < self._phases[index].steps:
                yield self._phases[index]

    def first_batch(self) -> int:
        """Returns the index of the first batch to read in the current phase.

        The index is computed from the data position, which counts rows. If the batch size has
        changed, the index differs from the number of steps.
        """
        progress = self.progress
        loader = self._phases[progress.phase].loader
        first = loader.check(progress.position) if progress.position else 0
        self._batch_offset = first - progress.phase_step
        return first

    def due_after_next(self, *, stop_requested: bool) -> DueActions:
        """Returns the actions due after the step that was dispatched last."""
        intervals, phase = self._intervals, self._phases[self.progress.phase]
        step = self.progress.step + 1
        end_phase = self.progress.phase_step + 1 >= phase.steps
        every = intervals.evaluate_every
        evaluate = end_phase or (every is not None and step % every == 0)
        # Check the clock first: all processes must take part in this exchange at the same steps.
        save = self._minutes_are_over(step) or end_phase or stop_requested
        save = save or step % intervals.checkpoint_every == 0
        if save:
            self._saved = time.monotonic()
        return DueActions(
            evaluate=evaluate and phase.evaluate is not None,
            save=save,
            stop=stop_requested and step < self.last_step,
            end_phase=end_phase,
            compare=bool(intervals.checksum_every and step % intervals.checksum_every == 0),
        )

    def _minutes_are_over(self, step: int) -> bool:
        """Returns whether a save is due by the first process's clock.

        In a job of several processes, checks only at report steps: a check costs a round trip.
        """
        if (minutes := self._intervals.checkpoint_minutes) is None:
            return False
        if jax.process_count() > 1 and step % self._intervals.log_every:
            return False
        return from_first_process(lambda: time.monotonic() - self._saved >= 60 * minutes)

    def finish_step(self, metrics: Sums) -> None:
        """Counts a step and adds its metrics to the next report."""
        progress = self.progress
        progress.step += 1
        progress.phase_step += 1
        progress.unevaluated, progress.scores = False, {}
        phase = self._phases[progress.phase]
        progress.architecture, progress.causal = {**phase.architecture}, phase.causal
        progress.position = phase.loader.position(progress.phase_step + self._batch_offset)
        progress.window = add(progress.window, metrics)

    @property
    def report_due(self) -> bool:
        """Whether to report after the last finished step."""
        return self.progress.step % self._intervals.log_every == 0

    def take_window(self) -> Sums:
        """Returns the sums of metrics since the last report, and resets them."""
        window, self.progress.window = self.progress.window, {}
        return window
