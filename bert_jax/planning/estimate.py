"""Estimates time and cost from compiled steps.

The time of a step is its cycles at the chip's clock, plus the exposed time of its collectives. The
time of a collective is its bytes divided by the bandwidth; it is exposed while the core does not
compute. Estimates exclude waiting for input, checkpoints and preemptions.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from bert_jax.parallel.accelerators import GIB, Accelerator
from bert_jax.parallel.topology import TpuTopology
from bert_jax.planning.compilation.cycles import MATRIX_UNITS
from bert_jax.planning.compilation.program import PRODUCTS
from bert_jax.planning.compilation.step import CompiledStep
from bert_jax.planning.prices import Prices
from bert_jax.planning.request import CompilerVersions


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepEstimate:
    """Estimated time of one compiled step."""

    parts: dict[str, float]  # seconds by unit: matrix units, vector units and memory, network
    mfu: float  # useful FLOPs, divided by the peak FLOPs of all chips in bfloat16
    rows_per_second: float  # rows per second of all chips

    @property
    def seconds(self) -> float:
        """Seconds of one step."""
        return sum(self.parts.values())

    @property
    def bound(self) -> str:
        """The unit with the most seconds: a key of `parts`."""
        return max(self.parts, key=self.parts.__getitem__)


def estimate_step(step: CompiledStep, accelerator: Accelerator, *, chips: float) -> StepEstimate:
    """Returns the estimated time of a step on `chips` chips.

    Raises ValueError if the step does not fit.
    """
    if step.cycles is None:
        raise ValueError("a program that does not fit has no time")
    clock = accelerator.clock_hz
    products = step.cycles.by_kind.get(PRODUCTS, 0) + sum(
        one.cycles * one.calls for one in step.cycles.kernels if one.busiest in MATRIX_UNITS
    )
    parts = {
        "matrix units": products / clock,
        "vector units and memory": (step.cycles.total - products) / clock,
        "network": math.fsum(one.exposed_seconds(clock) for one in step.collectives),
    }
    seconds = sum(parts.values())
    peak = chips * accelerator.peak_flops["bfloat16"]
    return StepEstimate(
        parts=parts,
        mfu=step.useful_flops / seconds / peak,
        rows_per_second=step.rows / seconds,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhasePlan:
    """The compiled steps of one phase.

    An evaluation step is not compiled if it surely fits (see `bert_jax.planning.planning`). Its
    time per row is then estimated as a third of a train step's, because it has no backward pass.
    """

    steps: int
    seq_length: int
    batch_size: int
    train: CompiledStep
    evaluation: CompiledStep | None
    evaluation_batches: int  # number of batches in all evaluations of the phase
    evaluation_rows: int  # rows of an evaluation batch

    @property
    def compiled(self) -> dict[str, CompiledStep]:
        """The compiled steps by kind: ``train``, and ``evaluation`` if it was compiled."""
        steps = {"train": self.train, "evaluation": self.evaluation}
        return {kind: step for kind, step in steps.items() if step is not None}

    @property
    def fits(self) -> bool:
        """Whether all compiled steps fit into memory."""
        return all(step.memory is not None for step in self.compiled.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suggestion:
    """Settings under which the largest phase fits."""

    overrides: tuple[str, ...]  # changed settings as `key=value`; empty if none changed
    seconds: float  # estimated seconds of a step
    rows_per_second: float  # estimated rows per second of all chips
    peak_bytes: int  # peak HBM of a chip, from the compiler


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedSlices:
    """The slices of a plan."""

    topology: TpuTopology  # topology of one slice
    slices: int
    versions: CompilerVersions  # versions that compiled the programs

    @property
    def name(self) -> str:
        """The topology's name, with the number of slices: ``v5e:4x4``, ``v5e:4x4 × 2``."""
        return self.topology.name + (f" × {self.slices}" if self.slices > 1 else "")

    @property
    def chips(self) -> int:
        """The number of chips in all slices."""
        return self.topology.chips * self.slices

    def facts(self) -> dict[str, Any]:
        """Returns the slices as plain values."""
        return {
            "topology": self.topology.name,
            "accelerator_type": self.topology.accelerator_type,
            "slices": self.slices,
            "chips": self.chips,
            "devices": self.topology.devices * self.slices,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(PlannedSlices):
    """A run on one topology."""

    phases: Sequence[PhasePlan]
    learning_rate: tuple[str, ...]  # segments of the schedule, see `ScheduleSegment.describe`
    notes: tuple[str, ...] = ()  # limits of the estimates, as sentences
    suggestions: tuple[Suggestion, ...] = ()  # settings that fit, fastest first

    @property
    def fits(self) -> bool:
        """Whether all steps of all phases fit into memory."""
        return all(phase.fits for phase in self.phases)

    @property
    def peak_bytes(self) -> int:
        """The largest peak HBM of a chip over all steps, in bytes, from the compiler."""
        peaks = (step.peak for phase in self.phases for step in phase.compiled.values())
        return max(peaks) * self.topology.accelerator.devices_per_chip

    def hbm_share(self, *phases: PhasePlan) -> float:
        """Returns the largest share of a chip's HBM that the phases need. Default: all phases."""
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
        """Returns the suggestion to set `overrides`, with which `step` was compiled and fits."""
        estimate = self.estimate(step)
        return Suggestion(
            overrides=overrides,
            seconds=estimate.seconds,
            rows_per_second=estimate.rows_per_second,
            peak_bytes=step.peak * self.topology.accelerator.devices_per_chip,
        )

    def estimate(self, step: CompiledStep) -> StepEstimate:
        """Returns the estimated time of a step. Raises ValueError if the step does not fit."""
        return estimate_step(step, self.topology.accelerator, chips=self.chips)

    @property
    def hours(self) -> float | None:
        """Hours of the whole run including evaluations, or None if the run does not fit."""
        return math.fsum(map(self.phase_hours, self.phases)) if self.fits else None

    def phase_hours(self, phase: PhasePlan) -> float:
        """Returns the hours of a phase including evaluations.

        Raises ValueError if the phase does not fit.
        """
        train = self.estimate(phase.train)
        if phase.evaluation:
            evaluation = self.estimate(phase.evaluation).seconds
        else:
            evaluation = phase.evaluation_rows / train.rows_per_second / 3
        return (phase.steps * train.seconds + phase.evaluation_batches * evaluation) / 3600

    def dollars(self, prices: Prices, *phases: PhasePlan, spot: bool = False) -> float | None:
        """Returns the cost of phases in US dollars. Default: all phases.

        Returns None if a phase does not fit or the chip has no price.
        """
        chosen = phases or self.phases
        price = prices.chip_hour.get(self.topology.accelerator.name)
        rate = price and (price.spot if spot else price.on_demand)
        if rate is None or not all(phase.fits for phase in chosen):
            return None
        return math.fsum(map(self.phase_hours, chosen)) * self.chips * rate
