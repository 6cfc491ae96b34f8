"""Seeds × learning rates × epochs: the runs of a sweep, and their results."""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeVar

import pydantic

from bert_jax.errors import SettingError
from bert_jax.section import Section

Number = TypeVar("Number", int, float)


class SweepSection(Section):
    """Several runs as one job: every seed with every learning rate and number of epochs.

    ``sweep: {seeds: 5, learning_rates: [2e-5, 3e-5, 5e-5], epochs: [2, 3, 4]}`` is 45 runs: the
    paper's grid (arXiv 1810.04805, A.3) with five restarts of each.
    """

    seeds: int = pydantic.Field(default=1, ge=1)
    """The run's seed and those that follow it."""
    learning_rates: tuple[pydantic.PositiveFloat, ...] = ()
    """Empty: the optimizer's alone."""
    epochs: tuple[pydantic.PositiveInt, ...] = ()
    """Empty: the run's alone."""

    @pydantic.field_validator("learning_rates", "epochs")
    @classmethod
    def _each_once(cls, values: tuple[Number, ...]) -> tuple[Number, ...]:
        for value in values:
            if values.count(value) > 1:
                raise SettingError(
                    "sweep.repeated_value",
                    "found {found} twice, allowed: each value once",
                    found=value,
                )
        return values


class SweepPoint(NamedTuple):
    """One run of a sweep."""

    seed: int
    learning_rate: float
    epochs: int

    @property
    def name(self) -> str:
        """``seed1-lr5e-05-epochs3``: the name of its directory."""
        return f"seed{self.seed}-lr{self.learning_rate!r}-epochs{self.epochs}"


class RunResult(NamedTuple):
    """A run's best evaluation."""

    point: SweepPoint
    score: float | None  # the figure that ranks runs; a stopped run has none
    step: int  # step of the best evaluation; 0 if the run stopped
    scores: Mapping[str, float]  # all dev figures
    degenerate: str | None  # reason of failure; see `bert_jax.tasks.scores.Baseline`
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Returns a row of plain values, with the fields of the point."""
        row = self._asdict()
        return {"name": self.point.name, **row.pop("point")._asdict(), **row}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """Reads a row of `to_json`."""
        point = SweepPoint(row["seed"], row["learning_rate"], row["epochs"])
        return cls(point, **{key: row[key] for key in cls._fields if key != "point"})


class Spread(NamedTuple):
    """The scatter of scores."""

    runs: int
    mean: float | None  # None without a score
    deviation: float | None  # of a sample (n − 1); None below two scores

    @classmethod
    def of(cls, scores: Sequence[float]) -> Self:
        """Returns the scatter of any number of scores."""
        deviation = statistics.stdev(scores) if len(scores) > 1 else None
        return cls(len(scores), statistics.fmean(scores) if scores else None, deviation)


class Cell(NamedTuple):
    """The seeds of one learning rate and one number of epochs."""

    learning_rate: float
    epochs: int
    runs: int
    every: Spread  # all runs with a score
    sound: Spread  # those that are not degenerate
    least: float | None
    most: float | None
    best_seed: int | None
    degenerate: int  # number of runs, those without a score included

    def to_json(self) -> dict[str, Any]:
        """Returns plain values."""
        return {**self._asdict(), "every": self.every._asdict(), "sound": self.sound._asdict()}


def points_of(
    section: SweepSection, *, seed: int, learning_rate: float, epochs: int
) -> list[SweepPoint]:
    """Returns the runs of a sweep from its first seed on: by epochs, then learning rate, then seed.

    `learning_rate` and `epochs` are for a section that names none.
    """
    grid = itertools.product(
        section.epochs or (epochs,),
        section.learning_rates or (learning_rate,),
        range(seed, seed + section.seeds),
    )
    return [SweepPoint(each, rate, count) for count, rate, each in grid]


def best_of(results: Iterable[RunResult]) -> RunResult | None:
    """Returns the first run with the largest score; None without any score."""
    scored = [each for each in results if each.score is not None and math.isfinite(each.score)]
    return max(scored, key=lambda result: result.score or 0.0, default=None)


def cells_of(results: Iterable[RunResult]) -> list[Cell]:
    """Returns mean, deviation and best of each learning rate and number of epochs, in order.

    Three seeds scored 0.8, 0.9 and, degenerate, 0.5 → every 0.733 ± 0.208, sound 0.85 ± 0.071.
    """
    grouped: dict[tuple[float, int], list[RunResult]] = {}
    for result in results:
        key = (result.point.learning_rate, result.point.epochs)
        grouped.setdefault(key, []).append(result)
    return [_cell(*key, members) for key, members in grouped.items()]


def _cell(rate: float, epochs: int, results: Sequence[RunResult]) -> Cell:
    scored = [
        (each.score, each.degenerate is None)
        for each in results
        if each.score is not None and math.isfinite(each.score)
    ]
    scores, best = [score for score, _ in scored], best_of(results)
    return Cell(
        learning_rate=rate,
        epochs=epochs,
        runs=len(results),
        every=Spread.of(scores),
        sound=Spread.of([score for score, sound in scored if sound]),
        least=min(scores, default=None),
        most=max(scores, default=None),
        best_seed=None if best is None else best.point.seed,
        degenerate=sum(each.degenerate is not None for each in results),
    )
