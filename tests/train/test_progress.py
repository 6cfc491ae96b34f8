"""When evaluations, saves and stops are due, with phases, signals and patience."""

import dataclasses
from contextlib import nullcontext
from typing import Any

import pytest

from bert_jax.data.loader.data_position import DataPosition
from bert_jax.train import progress
from bert_jax.train.checkpoint_manifest import SelectionScore
from bert_jax.train.evaluation_section import StopAtSection
from bert_jax.train.progress import DueActions, StepTracker, TrainProgress
from bert_jax.train.spec import Intervals, Phase

INTERVALS = Intervals(log_every=2, evaluate_every=3, checkpoint_every=4)
NOTHING = DueActions(evaluate=False, save=False, stop=False, end_phase=False)


class Rows:
    """A loader whose batches contain their index instead of rows."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size

    def batches(self, *, first_step: int, **others: Any) -> Any:
        del others
        return nullcontext(iter(range(first_step, 1000)))

    def position(self, step: int) -> DataPosition:
        return DataPosition(example_index=step * self.batch_size, fingerprint={})

    def resume_position(self, position: DataPosition) -> DataPosition:
        return position

    def check(self, position: DataPosition) -> int:
        return position.example_index // self.batch_size


def phase(steps: int, *, batch_size: int = 8, evaluated: bool = True) -> Phase:
    return Phase(
        step=None,  # pyright: ignore[reportArgumentType] (the tracker does not run it)
        steps=steps,
        batch_size=batch_size,
        accumulation=1,
        loader=Rows(batch_size),
        shapes=1,
        flops_per_row=1.0,
        evaluate=(lambda params, frozen: {}) if evaluated else None,
        watch=None,
    )


def walk(tracker: StepTracker, *, stop_at: int | None = None) -> dict[int, DueActions]:
    """Runs the steps up to a stop or the end; returns the actions due after each step."""
    found = {}
    for entered in tracker.remaining_phases():
        tracker.first_batch()
        for _ in range(entered.steps - tracker.progress.phase_step):
            step = tracker.progress.step + 1
            found[step] = tracker.due_after_next(stop_requested=step == stop_at)
            tracker.finish_step({"loss": (1.0, 1.0)})
            if found[step].stop:
                return found
    return found


def test_evaluations_and_saves_come_at_intervals_and_phase_ends() -> None:
    tracker = StepTracker(TrainProgress(), phases=[phase(5), phase(2)], intervals=INTERVALS)
    assert tracker.last_step == 7
    found = walk(tracker)
    end = DueActions(evaluate=True, save=True, stop=False, end_phase=True)
    assert found == {
        1: NOTHING,
        2: NOTHING,
        3: NOTHING._replace(evaluate=True),
        4: NOTHING._replace(save=True),
        5: end,
        6: NOTHING._replace(evaluate=True),
        7: end,
    }
    progress = tracker.progress
    assert (progress.step, progress.phase, progress.phase_step) == (7, 1, 2)
    assert progress.position == DataPosition(example_index=16, fingerprint={})
    assert tracker.take_window() == {"loss": (7.0, 7.0)}
    assert progress.window == {}


def test_a_phase_without_held_out_data_is_not_evaluated() -> None:
    phases = [phase(3, evaluated=False)]
    found = walk(StepTracker(TrainProgress(), phases=phases, intervals=INTERVALS))
    assert not any(due.evaluate for due in found.values())


def test_a_signal_saves_and_stops_an_unfinished_run() -> None:
    for stop_at, stops in ((2, True), (5, True), (7, False)):
        tracker = StepTracker(TrainProgress(), phases=[phase(5), phase(2)], intervals=INTERVALS)
        found = walk(tracker, stop_at=stop_at)
        assert (found[stop_at].save, found[stop_at].stop) == (True, stops)
        assert tracker.progress.step == max(found) == stop_at


def test_a_resumed_run_skips_finished_rows() -> None:
    done = DataPosition(example_index=16, fingerprint={})
    progress = TrainProgress(step=4, phase=0, phase_step=4, position=done)
    # 16 rows are four steps of four rows, or two steps of eight rows.
    tracker = StepTracker(progress, phases=[phase(6), phase(2)], intervals=INTERVALS)
    assert tracker.last_step == 8
    assert list(walk(tracker)) == [5, 6, 7, 8]
    progress = TrainProgress(step=4, phase=0, phase_step=4, position=done)
    tracker = StepTracker(progress, phases=[phase(6)], intervals=INTERVALS)
    assert tracker.first_batch() == 2
    tracker.finish_step({})
    assert progress.position == DataPosition(example_index=24, fingerprint={})


def test_a_run_out_of_patience_has_no_phases_left() -> None:
    intervals = Intervals(log_every=1, evaluate_every=1, checkpoint_every=1, patience=2)
    tracker = StepTracker(TrainProgress(), phases=[phase(9)], intervals=intervals)
    for score, out in ((1.0, False), (0.5, False), (0.5, False), (0.7, True)):
        tracker.progress.record_evaluation(SelectionScore(score, "dev"))
        assert tracker.out_of_patience == out
    assert list(tracker.remaining_phases()) == []


def test_a_save_is_due_minutes_after_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds[0])
    intervals = Intervals(
        log_every=9, evaluate_every=None, checkpoint_every=99, checkpoint_minutes=2
    )
    tracker = StepTracker(TrainProgress(), phases=[phase(9)], intervals=intervals)
    due = []
    for _ in range(7):
        seconds[0] += 50
        due.append(tracker.due_after_next(stop_requested=False).save)
        tracker.finish_step({})
    assert due == [False, False, True, False, False, True, False]


def test_a_met_stop_rule_ends_the_run_until_another_step_is_trained() -> None:
    rule = StopAtSection(metric="accuracy", at_least=0.7)
    intervals = dataclasses.replace(INTERVALS, stop_at=rule)
    tracker = StepTracker(TrainProgress(), phases=[phase(7)], intervals=intervals)
    score = SelectionScore(1.0, "dev")
    tracker.record_evaluation({"accuracy": 0.9, "loss": 1.0}, score)  # before the first step
    assert not tracker.ended_early
    assert tracker.next_evaluation == 3
    for step, accuracy, next_step in ((3, 0.69, 6), (6, 0.7, 7)):
        for _ in range(3):
            tracker.first_batch()
            tracker.finish_step({})
        tracker.record_evaluation({"accuracy": accuracy, "loss": 1.0}, score)
        assert tracker.progress.step == step
        assert tracker.target_reached == (accuracy >= 0.7)
        assert tracker.next_evaluation == next_step
    assert list(tracker.remaining_phases()) == []
    restored = TrainProgress.from_json(tracker.progress.to_json())
    assert StepTracker(restored, phases=[phase(7)], intervals=intervals).target_reached
    for changed in (None, StopAtSection(metric="accuracy", at_least=0.71)):
        others = dataclasses.replace(INTERVALS, stop_at=changed)
        assert not StepTracker(restored, phases=[phase(7)], intervals=others).ended_early
    tracker.finish_step({})
    assert not tracker.target_reached
