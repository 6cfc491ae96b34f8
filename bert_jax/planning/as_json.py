"""Plans as JSON, for other programs."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from bert_jax.planning.compilation.collectives import Collective
from bert_jax.planning.compilation.step import CompiledStep
from bert_jax.planning.estimate import Plan
from bert_jax.planning.prices import Prices
from bert_jax.planning.verdict import verdict


def plans_as_json(plans: Sequence[Plan], prices: Prices) -> str:
    """Returns a list of plans; bytes are of a JAX device, FLOPs of all chips, times in seconds."""
    return json.dumps([_plan(found, prices) for found in plans], indent=2)


def _plan(found: Plan, prices: Prices) -> dict[str, Any]:
    topology = found.topology
    hours = found.hours
    return {
        "topology": topology.name,
        "accelerator_type": topology.accelerator_type,
        "slices": found.slices,
        "chips": found.chips,
        "devices": topology.devices * found.slices,
        "hosts": topology.hosts() * found.slices,
        "fits": found.fits,
        "verdict": verdict(found, prices),
        "compiled": {
            "peak_hbm_bytes_per_chip": found.peak_bytes,
            "hbm_bytes_per_chip": topology.accelerator.hbm_bytes,
        },
        "estimated": {
            "hours": hours,
            "chip_hours": None if hours is None else hours * found.chips,
            "dollars_on_demand": found.dollars(prices, spot=False),
            "dollars_spot": found.dollars(prices, spot=True),
            "prices": {"date": prices.date, "source": prices.source},
        },
        "notes": list(found.notes),
        "suggestions": [dataclasses.asdict(one) for one in found.suggestions],
        "phases": [
            {
                "steps": phase.steps,
                "seq_length": phase.seq_length,
                "batch_size": phase.batch_size,
                "train": _step(found, phase.train),
                "evaluation": None if phase.evaluation is None else _step(found, phase.evaluation),
            }
            for phase in found.phases
        ],
    }


def _step(found: Plan, step: CompiledStep) -> dict[str, Any]:
    result: dict[str, Any] = {
        "rows": step.rows,
        "useful_flops": step.useful_flops,
        "quick": step.quick,
    }
    if step.memory is None or step.cycles is None:
        return result | {
            "needed_bytes": step.needed_bytes,
            "available_bytes": step.available_bytes,
        }
    assert step.work is not None  # as the cycles
    estimate = found.estimate(step)
    clock = found.topology.accelerator.clock_hz
    cycles = dataclasses.asdict(step.cycles) | {"total": step.cycles.total}
    return result | {
        "compiled": {
            "memory": dataclasses.asdict(step.memory),
            "cycles": cycles,
            "work": dataclasses.asdict(step.work),
            "seconds_to_compile": step.compile_seconds,
        },
        "estimated": {
            "seconds": estimate.seconds,
            "parts": estimate.parts,
            "bound": estimate.bound,
            "mfu": estimate.mfu,
            "rows_per_second": estimate.rows_per_second,
        },
        "collectives": [_collective(one, clock) for one in step.collectives],
    }


def _collective(one: Collective, clock_hz: float) -> dict[str, Any]:
    return dataclasses.asdict(one) | {
        "overlaps": one.overlaps,
        "exposed_seconds": one.exposed_seconds(clock_hz),
    }
