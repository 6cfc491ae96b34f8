"""Plans of `bert-jax score`: documents per second and the cost of a billion documents.

All devices of a slice run the same program without each other, so one device is compiled. The
estimates exclude reading and tokenising: the hosts must keep up.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

from bert_jax.parallel.topology import parse_topology
from bert_jax.planning.compilation.step import CompiledStep
from bert_jax.planning.compiler import Compiler
from bert_jax.planning.estimate import PlannedSlices, StepEstimate, estimate_step
from bert_jax.planning.prices import Prices
from bert_jax.planning.request import ForwardRequest, installed_versions

BILLION: Final = 10**9


@dataclasses.dataclass(frozen=True, kw_only=True)
class InferencePlan(PlannedSlices):
    """The forward program for rows of one length, on the devices of a slice."""

    length: int  # tokens of a row, padding included
    step: CompiledStep  # a batch on one device

    @property
    def fits(self) -> bool:
        """Whether the program fits into memory."""
        return self.step.memory is not None

    @property
    def hbm_share(self) -> float:
        """The share of a device's HBM that the program needs."""
        available = self.topology.accelerator.device_hbm_bytes
        return self.step.peak / (self.step.available_bytes or available)

    @property
    def estimate(self) -> StepEstimate:
        """The estimated time of a batch on one device. Raises ValueError if it does not fit."""
        accelerator = self.topology.accelerator
        return estimate_step(self.step, accelerator, chips=1 / accelerator.devices_per_chip)

    @property
    def documents_per_second(self) -> float:
        """Estimated rows per second of all devices. Raises ValueError if it does not fit."""
        return self.estimate.rows_per_second * self.topology.devices * self.slices

    @property
    def hours(self) -> float:
        """Estimated hours for a billion rows. Raises ValueError if the program does not fit."""
        return BILLION / self.documents_per_second / 3600

    def dollars(self, prices: Prices, *, spot: bool = False) -> float | None:
        """Returns the estimated cost of a billion rows in US dollars.

        Returns None if the program does not fit or the chip has no price.
        """
        price = prices.chip_hour.get(self.topology.accelerator.name)
        rate = price and (price.spot if spot else price.on_demand)
        return self.hours * self.chips * rate if self.fits and rate is not None else None


def plan_inference(
    requests: Sequence[ForwardRequest], *, slices: int, compiler: Compiler
) -> list[InferencePlan]:
    """Compiles forward programs. The compiler generates code, which takes a minute or two.

    The cost model of quick plans is fitted to train steps, and is 8% off here. Raises the same
    errors as `Compiler.steps`.
    """
    named = [
        each.model_copy(update={"topology": parse_topology(each.topology).name})
        for each in requests
    ]
    return [
        InferencePlan(
            topology=parse_topology(request.topology),
            slices=slices,
            length=request.length,
            step=step,
            versions=installed_versions(),
        )
        for request, step in zip(named, compiler.steps(named), strict=True)
    ]
