"""Time and money, estimated from the compiler's figures.

A step takes its cycles at the chip's clock, and then the collectives that no work of the core
hides, bytes over bandwidth. Waiting for input, checkpoints and preemptions are not in it.
"""

import dataclasses
import math
from collections.abc import Sequence

from bert_jax.parallel.accelerators import GIB
from bert_jax.parallel.topology import TpuTopology
from bert_jax.planning.compilation.program import PRODUCTS
from bert_jax.planning.compilation.step import CompiledStep
from bert_jax.planning.prices import Prices


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepEstimate:
    """One compiled step in time."""

    parts: dict[str, float]  # seconds by what they are spent on
    mfu: float  # useful FLOPs over the chips' bf16 peak
    rows_per_second: float  # of the whole slice

    @property
    def seconds(self) -> float:
        """Seconds of one step."""
        return sum(self.parts.values())

    @property
    def bound(self) -> str:
        """The part that takes most of the time."""
        return max(self.parts, key=self.parts.__getitem__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhasePlan:
    """One phase: its steps, compiled and estimated.

    An evaluation step that was not compiled goes forward only: a third of a train step's time. It
    needs no more memory than there is, see `bert_jax.planning.planning`.
    """

    steps: int
    seq_length: int
    batch_size: int
    train: CompiledStep
    evaluation: CompiledStep | None
    evaluation_batches: int  # of all evaluations in the phase
    evaluation_rows: int  # of a batch

    @property
    def compiled(self) -> dict[str, CompiledStep]:
        """The steps that were compiled: train, and evaluation if it was."""
        steps = {"train": self.train, "evaluation": self.evaluation}
        return {kind: step for kind, step in steps.items() if step is not None}

    @property
    def fits(self) -> bool:
        """Whether all programs could be compiled into the memory there is."""
        return all(step.memory is not None for step in self.compiled.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suggestion:
    """Settings under which the largest phase fits."""

    overrides: tuple[str, ...]  # `key=value`, to paste after the configuration; empty: as it is
    seconds: float  # of a step, estimated
    rows_per_second: float  # of the whole slice, estimated
    peak_bytes: int  # of a chip's HBM, by the compiler's own figure


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A run on one topology."""

    topology: TpuTopology  # of a slice
    slices: int
    phases: Sequence[PhasePlan]  # compiled
    notes: tuple[str, ...] = ()  # what a reader must know of how the figures came about
    suggestions: tuple[Suggestion, ...] = ()  # that fit, fastest first, where looked for

    @property
    def name(self) -> str:
        """The topology's name, with the number of slices: ``v5e:4x4``, ``v5e:4x4 × 2``."""
        return self.topology.name + (f" × {self.slices}" if self.slices > 1 else "")

    @property
    def chips(self) -> int:
        """Chips of all slices."""
        return self.topology.chips * self.slices

    @property
    def fits(self) -> bool:
        """Whether every program does."""
        return all(phase.fits for phase in self.phases)

    @property
    def peak_bytes(self) -> int:
        """The most that a chip's HBM must hold, by the compiler's own figure."""
        peaks = (step.peak for phase in self.phases for step in phase.compiled.values())
        return max(peaks) * self.topology.accelerator.devices_per_chip

    def hbm_share(self, *phases: PhasePlan) -> float:
        """Returns the largest share of a chip's HBM that phases need. Default: all phases."""
        available = self.topology.accelerator.device_hbm_bytes
        steps = (step for phase in phases or self.phases for step in phase.compiled.values())
        return max(step.peak / (step.available_bytes or available) for step in steps)

    def memory_missing(self) -> str:
        """Returns the first step that does not fit, the HBM it needs, and the HBM of a chip."""
        kind, at, step = next(
            (kind, at, step)
            for at, phase in enumerate(self.phases)
            for kind, step in phase.compiled.items()
            if step.memory is None
        )
        unit = GIB / self.topology.accelerator.devices_per_chip
        needed, available = step.peak / unit, (step.available_bytes or 0) / unit
        where = f"the {kind} step of phase {at}"
        return f"{where} needs {needed:.1f} GiB of {available:.1f} GiB per chip"

    def suggestion(self, overrides: tuple[str, ...], step: CompiledStep) -> Suggestion:
        """Returns settings whose train step was compiled and fits."""
        estimate = self.estimate(step)
        return Suggestion(
            overrides=overrides,
            seconds=estimate.seconds,
            rows_per_second=estimate.rows_per_second,
            peak_bytes=step.peak * self.topology.accelerator.devices_per_chip,
        )

    def estimate(self, step: CompiledStep) -> StepEstimate:
        """Returns the time of one of its steps; raises ValueError if it was not compiled."""
        if step.cycles is None:
            raise ValueError("a program that does not fit has no time")
        accelerator = self.topology.accelerator
        clock = accelerator.clock_hz
        products = step.cycles.by_kind.get(PRODUCTS, 0) + sum(
            one.cycles * one.calls for one in step.cycles.kernels if one.busiest.startswith("MAT")
        )
        parts = {
            "matrix units": products / clock,
            "vector units and memory": (step.cycles.total - products) / clock,
            "network": math.fsum(one.exposed_seconds(clock) for one in step.collectives),
        }
        seconds = sum(parts.values())
        peak = self.chips * accelerator.peak_flops["bfloat16"]
        return StepEstimate(
            parts=parts,
            mfu=step.useful_flops / seconds / peak,
            rows_per_second=step.rows / seconds,
        )

    @property
    def hours(self) -> float | None:
        """Hours of the whole run with its evaluations, if it fits."""
        return math.fsum(map(self.phase_hours, self.phases)) if self.fits else None

    def phase_hours(self, phase: PhasePlan) -> float:
        """Returns the hours of a phase with its evaluations; ValueError: it does not fit."""
        train = self.estimate(phase.train)
        if phase.evaluation:
            evaluation = self.estimate(phase.evaluation).seconds
        else:
            evaluation = phase.evaluation_rows / train.rows_per_second / 3
        return (phase.steps * train.seconds + phase.evaluation_batches * evaluation) / 3600

    def dollars(self, prices: Prices, *phases: PhasePlan, spot: bool = False) -> float | None:
        """Returns the cost of phases, default: all, if they fit and the list has a price."""
        chosen = phases or self.phases
        price = prices.chip_hour.get(self.topology.accelerator.name)
        rate = price and (price.spot if spot else price.on_demand)
        if rate is None or not all(phase.fits for phase in chosen):
            return None
        return math.fsum(map(self.phase_hours, chosen)) * self.chips * rate
