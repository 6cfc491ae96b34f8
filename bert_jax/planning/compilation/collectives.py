"""The collectives of a program: how often, how many bytes, among whom, over which link.

Times are estimates: bytes over the bandwidth of the links that a group spans, as rings along the
dimensions of the torus (scaling book, part 3). What the core computes between the start and the end
of an asynchronous collective hides that much of it.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from bert_jax.parallel.topology import TpuTopology
from bert_jax.planning.compilation.execution import Executed, Program
from bert_jax.planning.compilation.hlo import Array, HloModule, Instruction

KINDS: Final = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute")
ICI: Final = "ICI"
DCN: Final = "DCN"

# Between slices the compiler hands arrays to the host: a send and a receive of one rendezvous.
_TRANSFER = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="([^"]*)"')
_TRANSFERS: Final[dict[str, str]] = {
    "ALL_REDUCE": "all-reduce",
    "REDUCE_SCATTER": "reduce-scatter",
    "ALL_GATHER": "all-gather",
    "ALL_TO_ALL": "all-to-all",
    "ONE_TO_ONE": "collective-permute",
}

# A sum of which each device keeps its share is a fusion of that name, and scatters as it sums.
_SCATTERS: Final = "all-reduce-scatter"
# Fusions between which a collective runs; the one in flight beside a product is written in it too.
_ASYNC = re.compile(r'custom_call_target="AsyncCollective(Start|Done)"')
_IN_FLIGHT: Final = "async_collective_fusion"

_GROUPS = re.compile(r"\breplica_groups=(.*?)(?:, \w+=|$)")
_PAIRS = re.compile(r"\bsource_target_pairs=\{(.*?)\}\}")
_MESH = re.compile(r"mesh\[(.*?)\]\s*\{(.*?)\}")
_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DevicePlacement:
    """Where the devices of a program are."""

    topology: TpuTopology  # of one slice
    mesh: Mapping[str, int]  # axis → size, in the order in which devices are numbered
    coordinates: Sequence[Sequence[int]]  # of each device's chip in its slice
    slices: Sequence[int]  # of each device


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective of the program's text."""

    name: str  # of the instruction
    kind: str  # one of `KINDS`
    trips: int  # how often one run executes it
    bytes: int  # of the whole array that a group shares, once
    dtypes: tuple[str, ...]  # of its arrays
    axes: tuple[str, ...]  # mesh axes over which a group extends
    group: int  # devices of a group
    link: str  # `ICI`, or `DCN` where groups cross slices
    seconds: float  # of one execution, estimated, with nothing beside it
    hidden_cycles: int  # of the core beside one execution; several in flight share them

    @property
    def overlaps(self) -> bool:
        """Whether the core works meanwhile."""
        return self.hidden_cycles > 0

    def exposed_seconds(self, clock_hz: float) -> float:
        """Returns the time of all executions that no work of the core hides."""
        return self.trips * max(self.seconds - self.hidden_cycles / clock_hz, 0.0)


def find_collectives(program: Program, placement: DevicePlacement) -> list[Collective]:
    """Returns the collectives of a program, also those inside fusions."""
    hidden = _hidden_cycles(program)
    found = []
    for executed in program.executed:
        for instruction in _inside(program.module, executed):
            between = _between_slices(instruction)
            kind = between or _kind(instruction)
            if kind is None or executed.trips == 0:
                continue
            scatters = _fused(program.module, executed.instruction).startswith(_SCATTERS)
            if between:
                # Each chip exchanges its own part with the chips in its place in other slices.
                groups = [_counterparts(placement)]
                arrays = instruction.arrays[:1]
                size = arrays[0].bytes
            else:
                groups = device_groups(instruction, devices=len(placement.slices))
                arrays = _arrays(instruction, kind)
                size = sum(array.bytes for array in arrays)
                size *= len(groups[0]) if kind == "reduce-scatter" else 1
                kind = "reduce-scatter" if scatters else kind
            link, seconds = _time(kind, size, groups[0], placement)
            found.append(
                Collective(
                    name=executed.instruction.name,
                    kind=kind,
                    trips=executed.trips,
                    bytes=size,
                    dtypes=tuple(sorted({array.dtype for array in arrays})),
                    axes=_axes(groups[0], placement.mesh),
                    group=len(groups[0]),
                    link=link,
                    seconds=seconds,
                    hidden_cycles=hidden.get(executed.instruction.name, 0),
                )
            )
    return found


def device_groups(instruction: Instruction, *, devices: int) -> list[list[int]]:
    """Returns the groups of devices of a collective, from any way in which XLA writes them.

    ``mesh['a'=8,'b'=2] {'a'}``, ``[2,8]<=[16]``, ``[2,8]<=[8,2]T(1,0)``, ``{{0,2},{1,3}}``, ``{}``
    (all). The pairs of a permutation are given as its rings.
    """
    if pairs := _PAIRS.search(instruction.attributes):
        numbers = [list(map(int, pair)) for pair in re.findall(r"(\d+),(\d+)", pairs[0])]
        return _rings(numbers)
    found = _GROUPS.search(instruction.attributes)
    text = found[1] if found else "{}"
    if mesh := _MESH.match(text):
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", mesh[1])}
        names = list(sizes)
        summed = [names.index(name) for name in re.findall(r"'(\w+)'", mesh[2])]
        grid = np.arange(math.prod(sizes.values())).reshape(tuple(sizes.values()))
        moved = np.moveaxis(grid, summed, range(-len(summed), 0))
        return moved.reshape(-1, math.prod(grid.shape[axis] for axis in summed)).tolist()
    if iota := _IOTA.match(text):
        grid = np.arange(devices).reshape(_numbers(iota[2]))
        if iota[3]:
            grid = grid.transpose(_numbers(iota[3]))
        return grid.reshape(_numbers(iota[1])).tolist()
    groups = [_numbers(group) for group in re.findall(r"\{([\d,]+)\}", text)]
    return [list(group) for group in groups] or [list(range(devices))]


def _between_slices(instruction: Instruction) -> str | None:
    """Returns the kind of collective that a send to the host stands for."""
    found = _TRANSFER.search(instruction.attributes)
    return _TRANSFERS.get(found[1]) if found and instruction.opcode == "send" else None


def _counterparts(placement: DevicePlacement) -> list[int]:
    return [placement.slices.index(one) for one in sorted(set(placement.slices))]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def _rings(pairs: Sequence[Sequence[int]]) -> list[list[int]]:
    targets, rings = {source: target for source, target in pairs}, []
    while targets:
        at = next(iter(targets))
        ring = [at]
        while (at := targets.pop(at, ring[0])) != ring[0] and at not in ring:
            ring.append(at)
        rings.append(ring)
    return rings


def _inside(module: HloModule, executed: Executed) -> Iterator[Instruction]:
    """Yields an instruction, or the collectives that a fusion holds, one in flight at its start."""
    instruction = executed.instruction
    if instruction.opcode != "fusion":
        yield instruction
        return
    if _role(module, instruction) in (_IN_FLIGHT, "Done"):
        return
    for found in module.computations[instruction.called["calls"]].values():
        if _kind(found) or found.opcode == "fusion":
            yield from _inside(module, dataclasses.replace(executed, instruction=found))


def _fused(module: HloModule, instruction: Instruction) -> str:
    """Returns the name of what a fusion holds; of another, nothing."""
    return instruction.called["calls"] if instruction.opcode == "fusion" else ""


def _role(module: HloModule, instruction: Instruction) -> str | None:
    """Returns what a fusion is to a collective that runs between fusions: ``Start``, ``Done``."""
    name = _fused(module, instruction)
    if not name or name.startswith(_IN_FLIGHT):
        return _IN_FLIGHT if name else None
    parts = (_ASYNC.search(one.attributes) for one in module.computations[name].values())
    return next((found[1] for found in parts if found), None)


def _kind(instruction: Instruction) -> str | None:
    name = instruction.opcode.removesuffix("-start")
    return name if name in KINDS else None


def _arrays(instruction: Instruction, kind: str) -> tuple[Array, ...]:
    """Returns the arrays of a collective's result, without the start's copy of its operand."""
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
    kind: str, size: int, group: Sequence[int], placement: DevicePlacement
) -> tuple[str, float]:
    """Returns the link and the seconds that one execution takes, with nothing beside it."""
    accelerator = placement.topology.accelerator
    slices = {placement.slices[device] for device in group}
    inside = [device for device in group if placement.slices[device] == placement.slices[group[0]]]
    seconds = _ring_seconds(kind, size, len(inside), _ici_bandwidth(inside, placement))
    if len(slices) == 1:
        return ICI, seconds
    # Each chip carries its part of the array between the slices.
    chips = max(len(inside) // accelerator.devices_per_chip, 1)
    per_chip = accelerator.dcn_bandwidth / accelerator.chips_per_host
    return DCN, seconds + _ring_seconds(kind, size // chips, len(slices), per_chip)


def _ring_seconds(kind: str, size: int, members: int, bandwidth: float) -> float:
    if members < 2 or not bandwidth:
        return 0.0
    share = (members - 1) / members
    passes = {"all-reduce": 2 * share, "collective-permute": 1.0, "all-to-all": share / 2}
    return size * passes.get(kind, share) / bandwidth


def _ici_bandwidth(group: Sequence[int], placement: DevicePlacement) -> float:
    """Returns the bytes per second that a device of a group sends and receives over its links.

    Along every dimension of the torus that the group extends over, both directions where the ends
    are joined, else the one of the chip at the end.
    """
    topology = placement.topology
    places = np.asarray([placement.coordinates[device] for device in group])
    spread = [len(set(column)) for column in places.T.tolist()]
    links = sum(
        2 if wrapped else 1
        for extent, wrapped in zip(spread, topology.wrapped_axes, strict=False)
        if extent > 1
    )
    return max(links, 1) * topology.accelerator.ici_bandwidth


def _hidden_cycles(program: Program) -> dict[str, int]:
    """Returns the core's cycles between each start of a collective and its end."""
    hidden: dict[str, int] = {}
    seen: set[int] = set()
    for executed in program.executed:
        if id(executed.computation) in seen:
            continue
        seen.add(id(executed.computation))
        running: dict[str, float] = {}
        carried: dict[str, str] = {}  # by what carries one in flight, the name of its start
        sends = {
            _rendezvous(one): one.name
            for one in executed.computation.values()
            if _between_slices(one)
        }
        for instruction in executed.computation.values():
            name, opcode = instruction.name, instruction.opcode
            role = _role(program.module, instruction)
            start = next((carried[each] for each in instruction.operands if each in carried), "")
            if opcode == "recv-done":
                received = executed.computation[instruction.operands[0]]
                start = sends.get(_rendezvous(received), "")
            ends = role == "Done" or (opcode.endswith("-done") and opcode != "send-done")
            if ends and start in running:
                hidden[start] = round(running.pop(start))
            for each in running:  # they share the network, and each gets its part of the time
                running[each] += (instruction.cycles or 0) / len(running)
            starts = role == "Start" or (opcode.endswith("-start") and _kind(instruction))
            if starts or _between_slices(instruction):
                running[name] = 0
                carried[name] = name
            elif start and (opcode == "get-tuple-element" or role == _IN_FLIGHT):
                carried[name] = start
    return hidden


def _rendezvous(instruction: Instruction) -> str | None:
    found = _RENDEZVOUS.search(instruction.attributes)
    return found[1] if found else None
