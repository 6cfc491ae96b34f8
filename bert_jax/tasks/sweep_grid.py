"""The runs of a sweep and their results."""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self, TypeVar

import pydantic

from bert_jax.errors import SettingError, UserError
from bert_jax.optim.sections import LearningRate
from bert_jax.section import Section

Number = TypeVar("Number", int, float)


MOST_SEEDS: Final = 1000
"""Maximum number of seeds of a sweep."""


class SweepSection(Section):
    """One job with all combinations of seeds, learning rates and numbers of epochs.

    ``sweep: {seeds: 5, learning_rates: [2e-5, 3e-5, 5e-5], epochs: [2, 3, 4]}`` has 45 runs: five
    seeds of the grid in the BERT paper (arXiv 1810.04805, A.3).
    """

    seeds: int = pydantic.Field(default=1, ge=1, le=MOST_SEEDS)
    """Number of consecutive seeds. The first one is `seed`."""
    learning_rates: tuple[LearningRate, ...] = ()
    """Learning rates. By default, `finetune.optimizer.learning_rate`."""
    epochs: tuple[pydantic.PositiveInt, ...] = ()
    """Numbers of epochs. By default, `finetune.epochs`."""

    @pydantic.field_validator("learning_rates", "epochs")
    @classmethod
    def _each_once(cls, values: tuple[Number, ...]) -> tuple[Number, ...]:
        for value in values:
            if values.count(value) > 1:
                raise SettingError.wrong("sweep.repeated_value", f"{value} twice", "once")
        return values


def check_seeds(section: SweepSection | None, seeds: int | None) -> None:
    """Raises UserError if the option --seeds is out of range or contradicts a section."""
    if seeds is None:
        return
    if not 1 <= seeds <= MOST_SEEDS:
        raise UserError.wrong("sweep.seeds", seeds, f"1 to {MOST_SEEDS}", place="--seeds")
    if section is not None and section.seeds not in (SweepSection().seeds, seeds):
        raise UserError.wrong(
            "sweep.two_seeds", seeds, f"{section.seeds}, as in finetune.sweep", place="--seeds"
        )


class SweepPoint(NamedTuple):
    """One run of a sweep."""

    seed: int
    learning_rate: float
    epochs: int

    @property
    def name(self) -> str:
        """Directory name of the run: ``seed1-lr5e-05-epochs3``."""
        return f"seed{self.seed}-lr{self.learning_rate!r}-epochs{self.epochs}"


class RunResult(NamedTuple):
    """The best evaluation of a run."""

    point: SweepPoint
    score: float | None  # score that ranks runs; None if the run diverged
    step: int  # step of the best evaluation; 0 if the run diverged
    scores: Mapping[str, float]  # all dev scores
    degenerate: str | None  # why the run failed, or None; see `Baseline.failure`
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values, including the fields of the point."""
        row = self._asdict()
        return {"name": self.point.name, **row.pop("point")._asdict(), **row}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        point = SweepPoint(row["seed"], row["learning_rate"], row["epochs"])
        return cls(point, **{key: row[key] for key in cls._fields if key != "point"})


class Spread(NamedTuple):
    """Mean and standard deviation of scores."""

    runs: int
    mean: float | None  # None if there is no score
    deviation: float | None  # with divisor n − 1; None for fewer than two scores

    @classmethod
    def of(cls, scores: Sequence[float]) -> Self:
        """Returns the spread of any number of scores."""
        deviation = statistics.stdev(scores) if len(scores) > 1 else None
        return cls(len(scores), statistics.fmean(scores) if scores else None, deviation)


class Cell(NamedTuple):
    """Statistics of the runs that differ only in the seed."""

    learning_rate: float
    epochs: int
    runs: int
    every: Spread  # all runs with a score
    sound: Spread  # runs that did not fail
    least: float | None
    most: float | None
    best_seed: int | None
    degenerate: int  # number of failed runs, including runs without a score

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return {**self._asdict(), "every": self.every._asdict(), "sound": self.sound._asdict()}


def points_of(
    section: SweepSection, *, seed: int, learning_rate: float, epochs: int
) -> list[SweepPoint]:
    """Returns the runs of a sweep, ordered by epochs, then learning rate, then seed.

    `seed` is the first seed. `learning_rate` and `epochs` are used if the section has none.
    """
    grid = itertools.product(
        section.epochs or (epochs,),
        section.learning_rates or (learning_rate,),
        range(seed, seed + section.seeds),
    )
    return [SweepPoint(each, rate, count) for count, rate, each in grid]


def best_of(results: Iterable[RunResult]) -> RunResult | None:
    """Returns the first run with the largest score, or None if no run has a score."""
    scored = [each for each in results if each.score is not None and math.isfinite(each.score)]
    return max(scored, key=lambda result: result.score or 0.0, default=None)


def cells_of(results: Iterable[RunResult]) -> list[Cell]:
    """Groups results by (learning rate, epochs), in order of first occurrence.

    Example: scores 0.8, 0.9 and 0.5, the last of a failed run → every 0.733 ± 0.208, sound 0.85 ±
    0.071.
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
