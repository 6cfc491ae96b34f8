"""Where a job may run, in the order in which that is tried, and what an hour there costs."""

import itertools
from collections.abc import Mapping, Sequence

from bert_jax.errors import UserError
from bert_jax.launch.job import JobPlacement
from bert_jax.launch.section import SubmitSection
from bert_jax.parallel.topology import parse_topology


def placements(section: SubmitSection, *, rates: Mapping[str, float]) -> tuple[JobPlacement, ...]:
    """Returns every combination of `on`, `zone` and `slices`, the last one's values first.

    Args:
        section: of the job; `zone` is resolved.
        rates: US dollars of a chip and an hour, by generation, where there is a price.

    Raises:
        UserError: nothing says where to run, `local` is one of several, or there is a limit on the
            cost and no price.
    """
    on = section.on
    if not on:
        raise UserError("--on: missing; such as v5litepod-16, or local for this machine")
    if "local" in on:
        if len(on) > 1 or section.slices != (1,):
            raise UserError(
                f"submit.on: found {', '.join(on)} with {max(section.slices)} slices, allowed: "
                "local alone, and --hosts"
            )
        return (JobPlacement(on="local", dollars_per_hour=0.0),)
    found = []
    for name, zone, slices in itertools.product(on, _zones(section), section.slices):
        topology = parse_topology(name)
        rate = rates.get(topology.accelerator.name)
        found.append(
            JobPlacement(
                on=topology.name,
                slices=slices,
                zone=zone,
                dollars_per_hour=None if rate is None else rate * topology.chips * slices,
            )
        )
    _check_prices(section, found)
    return tuple(found)


def _zones(section: SubmitSection) -> Sequence[str | None]:
    if not section.zone:
        if section.launcher == "gke":
            return (None,)  # the cluster's
        raise UserError("--zone: missing; such as us-central1-a")
    return section.zone


def _check_prices(section: SubmitSection, found: Sequence[JobPlacement]) -> None:
    without = [each.on for each in found if each.dollars_per_hour is None]
    if section.limits.cost is not None and without:
        raise UserError(
            f"submit.limits.cost: {without[0]} has no price by which it could be kept; allowed: a "
            "price list of your own, --prices FILE"
        )
