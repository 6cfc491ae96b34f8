"""From what the compiler says to time and money. Everything here is an estimate.

A step takes its cycles at the chip's clock, and then the collectives that no work of the core
hides, bytes over bandwidth. Waiting for input, checkpoints and preemptions are not in it.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Self

from bert_jax.parallel.topology import TpuTopology
from bert_jax.planning.compilation.step import CompiledStep
from bert_jax.planning.prices import Prices
from bert_jax.planning.suggest import Fitting

MATRIX_UNITS = "matrix units"
VECTOR_UNITS = "vector units and memory"
NETWORK = "network"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepEstimate:
    """One compiled step in time."""

    parts: dict[str, float]  # seconds by what they are spent on
    flops_per_second: float  # useful ones, of all chips
    mfu: float  # useful FLOPs over the chips' bf16 peak
    rows_per_second: float  # of the whole slice

    @property
    def seconds(self) -> float:
        """Of one step."""
        return sum(self.parts.values())

    @property
    def bound(self) -> str:
        """What most of the time is spent on."""
        return max(self.parts, key=self.parts.__getitem__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhasePlan:
    """One phase: its steps, compiled and estimated.

    An evaluation step that was not compiled goes forward only: a third of a train step's time. It
    needs no more memory than there is, see `bert_jax.planning.evaluation`.
    """

    steps: int
    seq_length: int
    batch_size: int
    train: CompiledStep
    evaluation: CompiledStep | None
    evaluations: int  # in the phase
    evaluation_batches: int  # of each
    evaluation_rows: int  # of a batch

    @property
    def compiled(self) -> list[CompiledStep]:
        """The train step, and the evaluation step if it was compiled."""
        return [step for step in (self.train, self.evaluation) if step is not None]

    @property
    def fits(self) -> bool:
        """Whether both programs could be compiled into the memory there is."""
        return all(step.memory is not None for step in self.compiled)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suggestion:
    """Settings under which the largest phase fits."""

    overrides: tuple[str, ...]  # `key=value`, to paste after the configuration; empty: as it is
    seconds: float  # of a step, estimated
    rows_per_second: float  # by it, of the whole slice
    peak_bytes: int  # of a chip's HBM, by the compiler's own figure


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A run on one topology."""

    topology: TpuTopology  # of a slice
    slices: int  # of it
    phases: Sequence[PhasePlan]  # compiled
    notes: tuple[str, ...] = ()  # what a reader must know of how the figures came about
    suggestions: tuple[Suggestion, ...] = ()  # that fit, fastest first, where looked for

    @property
    def chips(self) -> int:
        """Of all slices."""
        return self.topology.chips * self.slices

    @property
    def fits(self) -> bool:
        """Whether every program does."""
        return all(phase.fits for phase in self.phases)

    @property
    def peak_bytes(self) -> int:
        """The most that a chip's HBM must hold, by the compiler's own figure."""
        return max(map(self._peak, self._steps())) * self.topology.accelerator.devices_per_chip

    def hbm_share(self, *phases: PhasePlan) -> float:
        """Returns the largest share of a chip's HBM that phases need. Default: all phases."""
        steps = [step for phase in phases or self.phases for step in phase.compiled]
        return max(map(self._share, steps))

    def _share(self, step: CompiledStep) -> float:
        available = self.topology.accelerator.device_hbm_bytes
        return self._peak(step) / (step.available_bytes or available)

    def _steps(self) -> list[CompiledStep]:
        return [step for phase in self.phases for step in phase.compiled]

    @staticmethod
    def _peak(step: CompiledStep) -> int:
        return step.memory.peak if step.memory else step.needed_bytes or 0

    def suggested(self, fitting: Sequence[Fitting]) -> Self:
        """Returns the plan with candidates that fit, most rows a second first."""
        per_chip = self.topology.accelerator.devices_per_chip
        estimates = ((one, self.estimate(one.step)) for one in fitting)
        found = [
            Suggestion(
                overrides=one.overrides,
                seconds=estimate.seconds,
                rows_per_second=estimate.rows_per_second,
                peak_bytes=self._peak(one.step) * per_chip,
            )
            for one, estimate in estimates
        ]
        ordered = sorted(found, key=lambda one: -one.rows_per_second)
        return dataclasses.replace(self, suggestions=tuple(ordered))

    def estimate(self, step: CompiledStep) -> StepEstimate:
        """Returns the time of one of its steps.

        Raises:
            ValueError: the step could not be compiled.
        """
        if step.cycles is None:
            raise ValueError("a program that does not fit has no time")
        accelerator = self.topology.accelerator
        clock = accelerator.clock_hz
        products = step.cycles.by_kind.get("matrix products", 0) + sum(
            one.cycles * one.calls for one in step.cycles.kernels if one.busiest.startswith("MAT")
        )
        parts = {
            MATRIX_UNITS: products / clock,
            VECTOR_UNITS: (step.cycles.total - products) / clock,
            NETWORK: math.fsum(one.exposed_seconds(clock) for one in step.collectives),
        }
        rate = step.useful_flops / sum(parts.values())
        return StepEstimate(
            parts=parts,
            flops_per_second=rate,
            mfu=rate / (self.chips * accelerator.peak_flops["bfloat16"]),
            rows_per_second=step.rows / sum(parts.values()),
        )

    @property
    def hours(self) -> float | None:
        """Of the whole run with its evaluations; None where it does not fit."""
        if not self.fits:
            return None
        return math.fsum(map(self.phase_hours, self.phases))

    def phase_hours(self, phase: PhasePlan) -> float:
        """Returns the hours of one phase with its evaluations.

        Raises:
            ValueError: the phase does not fit.
        """
        seconds = phase.steps * self.estimate(phase.train).seconds
        batches = phase.evaluations * phase.evaluation_batches
        if phase.evaluation:
            seconds += batches * self.estimate(phase.evaluation).seconds
        else:
            rows = batches * phase.evaluation_rows
            seconds += rows / self.estimate(phase.train).rows_per_second / 3
        return seconds / 3600

    def chip_hour(self, prices: Prices, *, spot: bool) -> float | None:
        """Returns the price of one chip for an hour. None: the list has no price."""
        price = prices.chip_hour.get(self.topology.accelerator.name)
        return None if price is None else price.spot if spot else price.on_demand

    def dollars(self, prices: Prices, *, spot: bool) -> float | None:
        """Returns what the run costs; None where it does not fit or has no price."""
        rate = self.chip_hour(prices, spot=spot)
        return None if self.hours is None or rate is None else self.hours * self.chips * rate
