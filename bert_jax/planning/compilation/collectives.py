"""Finds the collectives of a program: executions, bytes, devices and links.

Estimates time as a latency per hop, and bytes divided by the bandwidth of the links that limit the
groups: those of a chip at a group's border, or those between two halves of the slice, which all
groups share. While an asynchronous collective runs, the core can compute; these cycles hide part of
its time.
"""

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Self

import numpy as np
from jax.sharding import Mesh

from bert_jax.parallel.topology import TpuTopology
from bert_jax.planning.compilation.hlo import Array, HloModule, Instruction
from bert_jax.planning.compilation.program import Operation, Program

KINDS: Final = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute")
ICI: Final = "ICI"
DCN: Final = "DCN"

# Between slices, arrays pass through the host: a send and a receive share one rendezvous name.
_TRANSFER = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="([^"]*)"')
# A fusion with this prefix is a reduce-scatter, although it contains an all-reduce.
_SCATTERS: Final = "all-reduce-scatter"
# Fusions that start and end an asynchronous collective. Fusions that run in between have the prefix
# `_IN_FLIGHT`, and contain the collective too.
_ASYNC = re.compile(r'custom_call_target="AsyncCollective(Start|Done)"')
_IN_FLIGHT: Final = "async_collective_fusion"

_GROUPS = re.compile(r"\breplica_groups=(.*?)(?:, \w+=|$)")
_PAIRS = re.compile(r"\bsource_target_pairs=\{(.*?)\}\}")
_MESH = re.compile(r"mesh\[(.*?)\]\s*\{(.*?)\}")
_HOP_SECONDS: Final = 1e-6  # latency of a link (scaling book, part 2)
_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DevicePlacement:
    """The placement of a program's devices in slices and on the mesh."""

    topology: TpuTopology  # topology of one slice
    mesh: Mapping[str, int]  # size of each axis; device indices are row-major
    coordinates: Sequence[Sequence[int]]  # coordinates of each device's chip in its slice
    slices: Sequence[int]  # slice index of each device

    @classmethod
    def of(cls, topology: TpuTopology, mesh: Mesh) -> Self:
        """Returns the placement of the devices of a mesh."""
        devices = mesh.devices.reshape(-1).tolist()
        return cls(
            topology=topology,
            mesh=dict(mesh.shape),
            coordinates=[device.coords for device in devices],
            slices=[getattr(device, "slice_index", None) or 0 for device in devices],
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective instruction of a program."""

    name: str  # name of the instruction
    kind: str  # one of `KINDS`
    trips: int  # number of executions in one run of the program
    bytes: int  # bytes of the whole array that a group shares
    dtypes: tuple[str, ...]  # dtypes of the arrays
    axes: tuple[str, ...]  # mesh axes that a group spans
    group: int  # number of devices in a group
    link: str  # `DCN` if groups cross slices, otherwise `ICI`
    seconds: float  # estimated seconds of one execution
    hidden_cycles: int  # cycles of the core during one execution, split between concurrent ones

    def exposed_seconds(self, clock_hz: float) -> float:
        """Returns the seconds of all executions during which the core does not compute."""
        return self.trips * max(self.seconds - self.hidden_cycles / clock_hz, 0.0)


def find_collectives(program: Program, placement: DevicePlacement) -> list[Collective]:
    """Returns the collectives of a program, including those inside fusions."""
    hidden = _hidden_cycles(program)
    found = []
    for operation in program.operations:
        inside = _inside(operation.module, operation.instruction) if operation.trips else ()
        for instruction in inside:
            if between := _between_slices(instruction):
                # Each chip exchanges its part with the chips at its position in other slices.
                kind, arrays = between, instruction.arrays[:1]
                groups = [[placement.slices.index(one) for one in sorted(set(placement.slices))]]
                size = arrays[0].bytes
            elif kind := _kind(instruction):
                groups = device_groups(instruction, devices=len(placement.slices))
                arrays = _arrays(instruction, kind)
                size = sum(array.bytes for array in arrays)
                size *= len(groups[0]) if kind == "reduce-scatter" else 1
                if operation.instruction.called.get("calls", "").startswith(_SCATTERS):
                    kind = "reduce-scatter"
            else:
                continue
            link, seconds = _time(kind, size, groups, placement)
            found.append(
                Collective(
                    name=operation.name,
                    kind=kind,
                    trips=operation.trips,
                    bytes=size,
                    dtypes=tuple(sorted({array.dtype for array in arrays})),
                    axes=_axes(groups[0], placement.mesh),
                    group=len(groups[0]),
                    link=link,
                    seconds=seconds,
                    hidden_cycles=hidden.get(operation.name, 0),
                )
            )
    return found


def device_groups(instruction: Instruction, *, devices: int) -> list[list[int]]:
    """Returns the groups of devices of a collective.

    XLA writes groups as ``mesh['a'=8,'b'=2] {'a'}``, ``[2,8]<=[16]``, ``[2,8]<=[8,2]T(1,0)``,
    ``{{0,2},{1,3}}``, or ``{}`` for all devices. The only group of a permutation is its first ring.
    """
    if pairs := _PAIRS.search(instruction.attributes):
        found = re.findall(r"(\d+),(\d+)", pairs[0])
        targets = {int(source): int(target) for source, target in found}
        ring = [next(iter(targets))]
        while (at := targets.get(ring[-1])) is not None and at not in ring:
            ring.append(at)
        return [ring]
    found = _GROUPS.search(instruction.attributes)
    text = found[1] if found else "{}"
    if mesh := _MESH.match(text):
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", mesh[1])}
        summed = re.findall(r"'(\w+)'", mesh[2])
        order = [at for at, name in enumerate(sizes) if name not in summed]
        order += [at for at, name in enumerate(sizes) if name in summed]
        grid = np.arange(math.prod(sizes.values())).reshape(tuple(sizes.values()))
        members = math.prod(sizes[name] for name in summed)
        return grid.transpose(order).reshape(-1, members).tolist()
    if iota := _IOTA.match(text):
        grid = np.arange(devices).reshape(_numbers(iota[2]))
        if iota[3]:
            grid = grid.transpose(_numbers(iota[3]))
        return grid.reshape(_numbers(iota[1])).tolist()
    listed = re.findall(r"\{([\d,]+)\}", text)
    return [list(_numbers(group)) for group in listed] or [list(range(devices))]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def _between_slices(instruction: Instruction) -> str | None:
    """Returns the kind of collective that a send to the host implements, or None."""
    found = instruction.opcode == "send" and _TRANSFER.search(instruction.attributes)
    kind = found[1].lower().replace("_", "-") if found else None
    return "collective-permute" if kind == "one-to-one" else kind


def _inside(module: HloModule, instruction: Instruction) -> Iterator[Instruction]:
    """Yields the instruction. For a fusion, yields the collectives inside it instead.

    Yields an asynchronous collective only for the fusion that starts it.
    """
    if instruction.opcode != "fusion":
        yield instruction
    elif _role(module, instruction) not in (_IN_FLIGHT, "Done"):
        for found in module.inside(instruction).values():
            if _kind(found) or found.opcode == "fusion":
                yield from _inside(module, found)


def _role(module: HloModule, instruction: Instruction) -> str | None:
    """Returns a fusion's role in an asynchronous collective.

    The role is ``Start``, ``Done``, `_IN_FLIGHT`, or None.
    """
    if instruction.opcode != "fusion":
        return None
    if instruction.called["calls"].startswith(_IN_FLIGHT):
        return _IN_FLIGHT
    parts = (_ASYNC.search(one.attributes) for one in module.inside(instruction).values())
    return next((found[1] for found in parts if found), None)


def _kind(instruction: Instruction) -> str | None:
    name = instruction.opcode.removesuffix("-start")
    return name if name in KINDS else None


def _arrays(instruction: Instruction, kind: str) -> tuple[Array, ...]:
    """Returns the arrays of a collective's result.

    The result of a ``-start`` instruction also contains the operands, which are left out.
    """
    arrays = instruction.arrays
    if instruction.opcode.endswith("-start") and kind != "all-reduce":
        numbers = [array for array in arrays if array.elements > 1] or list(arrays[:2])
        return tuple(numbers[len(numbers) // 2 :])
    return arrays


def _axes(group: Sequence[int], mesh: Mapping[str, int]) -> tuple[str, ...]:
    places = np.stack(np.unravel_index(np.asarray(group), tuple(mesh.values())), axis=-1)
    varies = (places != places[0]).any(axis=0)
    return tuple(name for name, differs in zip(mesh, varies, strict=True) if differs)


def _time(
    kind: str, size: int, groups: Sequence[Sequence[int]], placement: DevicePlacement
) -> tuple[str, float]:
    """Returns the link and the estimated seconds of one execution."""
    accelerator = placement.topology.accelerator
    slices = {placement.slices[device] for device in groups[0]}
    first = placement.slices[groups[0][0]]
    inside = [[one for one in group if placement.slices[one] == first] for group in groups]
    seconds = _ici_seconds(kind, size, [group for group in inside if group], placement)
    if len(slices) == 1:
        return ICI, seconds
    # Each chip sends its part of the array to the other slices.
    chips = max(len(inside[0]) // accelerator.devices_per_chip, 1)
    per_chip = accelerator.dcn_bandwidth / accelerator.chips_per_host
    share = (len(slices) - 1) / len(slices)
    return DCN, seconds + size // chips * share * _passes(kind) / per_chip


def _passes(kind: str) -> float:
    """Returns how often a collective sends its bytes, if a gather sends them once."""
    return {"all-reduce": 2.0, "all-to-all": 0.5}.get(kind, 1.0)


def _ici_seconds(
    kind: str, size: int, groups: Sequence[Sequence[int]], placement: DevicePlacement
) -> float:
    """Returns the seconds of a collective in a slice, in which all groups run at a time.

    A device receives all of the array but its own part over the links to its group. Besides, the
    links across each plane of the torus carry the parts that one side needs from the other.
    """
    topology = placement.topology
    if len(groups[0]) < 2:
        return 0.0
    bandwidth = topology.accelerator.ici_bandwidth
    if kind == "collective-permute":
        return size / bandwidth + _HOP_SECONDS
    places = [np.array([placement.coordinates[one] for one in group]) for group in groups]
    links, load, hops = np.zeros(len(groups[0])), 0.0, 0.0
    axes = zip(places[0].T, topology.shape, topology.wrapped_axes, strict=False)
    for axis, (own, length, wraps) in enumerate(axes):
        low, high = own.min(), own.max()
        steps = np.diff(np.unique(own), append=low + length)
        wrapped = wraps and high > low and len(set(steps)) == 1
        hops += (high - low) / (2 if wrapped else 1)
        links += 2 if wrapped else (own > low).astype(int) + (own < high)
        across = topology.chips // length * (2 if wrapped else 1)
        for plane in range(low + 1, high + 1):
            half = np.arange(plane, plane + length // 2) % length if wrapped else range(plane)
            shares = [np.isin(place[:, axis], half).mean() for place in places]
            load = max(load, sum(max(x, 1 - x) for x in shares if 0 < x < 1) / across)
    share = (len(groups[0]) - 1) / len(groups[0])
    longest = max(share / max(links.min(), 1), load)
    return _passes(kind) * (size * longest / bandwidth + hops * _HOP_SECONDS)


def _hidden_cycles(program: Program) -> dict[str, int]:
    """Returns the core's cycles between start and end of each asynchronous collective, by name."""
    computations: dict[int, dict[str, Operation]] = defaultdict(dict)
    for operation in program.operations:
        computations[id(operation.computation)][operation.name] = operation
    hidden: dict[str, int] = {}
    for operations in computations.values():
        running: dict[str, float] = {}
        # Maps each operation that passes on the result of a start to the start's name.
        carried: dict[str, str] = {}
        sends: dict[str | None, str] = {}  # name of the send, by rendezvous
        for name, operation in operations.items():
            each, role = operation.instruction, _role(operation.module, operation.instruction)
            start = next((carried[one] for one in each.operands if one in carried), "")
            if each.opcode == "recv-done":
                start = sends.get(_rendezvous(operations[each.operands[0]].instruction), "")
            ends = role == "Done" or (each.opcode.endswith("-done") and each.opcode != "send-done")
            if ends and start in running:
                hidden[start] = round(running.pop(start))
            for one in running:  # concurrent collectives share the cycles
                running[one] += (operation.cycles or 0) / len(running)
            if _between_slices(each):
                sends[_rendezvous(each)] = name
            elif not (role == "Start" or (each.opcode.endswith("-start") and _kind(each))):
                if start and (each.opcode == "get-tuple-element" or role == _IN_FLIGHT):
                    carried[name] = start
                continue
            running[name], carried[name] = 0, name
    return hidden


def _rendezvous(instruction: Instruction) -> str | None:
    found = _RENDEZVOUS.search(instruction.attributes)
    return found[1] if found else None
