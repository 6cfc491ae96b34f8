"""Bundles of a Pallas kernel, from the schedule that the compiler writes of it.

`estimated_cycles` covers XLA's own operations alone. When asked, libtpu writes the final
schedule of every operation: bundles of instructions that issue together, one bundle a cycle. A loop
(the grid is one) ends in a branch back; its trips follow from the counter that its exit test
compares with a constant. A pipelined grid has two steps more, in which the body is branched over.
Whatever else is branched over counts in full, so that figures are upper bounds.
"""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from bert_jax.planning.compilation.program import Program

# Of the last passes alone, a thirtieth of all.
_DUMP: Final = (
    "--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true "
    "--xla_jf_dump_category_filter=codegen,utilization --xla_jf_dump_llo_pass_label_regex=^final_"
)
_FLAGS: Final = "LIBTPU_INIT_ARGS"
_FILE = re.compile(r"^(\d+-.+)-\d+-final_(bundles|hlo-static-per-bundle-utilization)\.txt$")

_BUNDLE = re.compile(r"^ *(?:0x)?[0-9a-f]+ [A-Z ]*:[> ]*\{", re.MULTILINE)
_BRANCH = re.compile(r"sbr\.rel \(!?%(\w+)\) target = \$region(\d+)")
_BEGINS = re.compile(r"Start(?:/End empty)? region (\d+)\b")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
# %p22 = scmp.ge.s32.totalorder (%p152), %s25, 98
_DEFINITION = re.compile(r"%([sp]\w+) = ([a-z_]\w*(?:\.\w+)*) +(?:\(!?%\w+\),? *)?([^;}]*)")
_OPERAND = re.compile(r"%(\w+)|\b(\d+)\b")
_SPILL = re.compile(r"#(allocation\d+_spill)\]")
_SPILLED = re.compile(r"= sst \[smem:\[#(allocation\d+_spill)\]\] %(\w+)")
# A predicate that was spilled.
_PREDICATE_AS_NUMBER: Final = (("scalar_select", "1", "0"), ("scmp.ne.s32.totalorder", "0"))
_DEEPEST: Final = 8  # spills and selections one behind the other
_BEHIND_BRANCH: Final = 4  # bundles that run in any case


def write_schedules(folder: Path) -> None:
    """Has libtpu write schedules to a folder; call before libtpu is loaded, which reads it once."""
    flags = os.environ.get(_FLAGS, "")
    os.environ[_FLAGS] = f"{flags} {_DUMP.format(folder=folder)}".strip()


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelSchedule:
    """Schedule of one call of a kernel on one device."""

    bundles: int  # executed, those of loops times their trips: cycles without waiting for memory
    slots: Mapping[str, int]  # by unit of the core, the bundles that it alone would need
    steps: int  # of the outermost loop, the grid
    unknown_loops: int  # loops whose trips the schedule does not say; they count once


def read_schedules(folder: Path, program: Program) -> dict[str, KernelSchedule]:
    """Returns the schedules that the compiler wrote, by the kernel's program.

    The compiler schedules the first call of a kernel alone: other calls are the same.
    """
    files: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.iterdir()):
        if found := _FILE.match(path.name):
            files.setdefault(found[1], {})[found[2].partition("-")[0]] = path
    kernels = {each.name: each.kernel for each in program.operations}
    return {
        kernel: read_schedule(pair["bundles"].read_text(), pair["hlo"].read_text())
        for stem, pair in files.items()
        if (kernel := kernels.get(stem.partition("-")[2])) is not None and len(pair) == 2
    }


def read_schedule(bundles: str, utilization: str) -> KernelSchedule:
    """Returns the schedule that the two files of a kernel describe.

    `bundles`: text of ``final_bundles``; `utilization`: of
    ``final_hlo-static-per-bundle-utilization``, a row for each bundle.
    """
    starts = [found.start() for found in _BUNDLE.finditer(bundles)]
    ends = [*starts[1:], len(bundles)]
    texts = [bundles[start:end] for start, end in zip(starts, ends, strict=True)]
    stretches, unknown = _loops(texts)
    weights = np.ones(len(texts))
    for one in stretches:
        weights[one.first : one.last + 1] *= one.runs
    _, names, capacity, _, *rows = utilization.rstrip().splitlines()
    used = np.asarray([row.split() for row in rows], dtype=int)
    slots = weights @ used / np.asarray(capacity.split(), dtype=int)
    by_slot = zip(map(str.strip, names.split(",")), slots.tolist(), strict=True)
    return KernelSchedule(
        bundles=round(weights.sum()),
        slots={name: round(most) for name, most in sorted(by_slot, key=lambda slot: -slot[1])},
        steps=round(max((one.runs for one in stretches), default=1)),
        unknown_loops=unknown,
    )


class _Stretch(NamedTuple):
    """Bundles `first` to `last`, and how often they run in one run of the code around them."""

    first: int
    last: int
    runs: float


def _loops(texts: Sequence[str]) -> tuple[list[_Stretch], int]:
    """Returns loops, the parts of loops that are branched over, and the number of unknown loops."""
    begins = {region: at for at, text in enumerate(texts) for region in _BEGINS.findall(text)}
    values = _Values(texts)
    loops: list[_Stretch] = []
    parts: list[_Stretch] = []
    unknown = 0
    branches = [(at, *found) for at, text in enumerate(texts) for found in _BRANCH.findall(text)]
    # A loop's end stands behind the branches inside it, so inner loops come first.
    for at, predicate, region in branches:
        target = begins.get(region, -1)
        if 0 <= target <= at:
            trips = values.trips(predicate)
            unknown += trips is None
            loops.append(_Stretch(target, at + _BEHIND_BRANCH, trips or 1))
    for at, predicate, region in branches:
        first, last = at + _BEHIND_BRANCH + 1, begins.get(region, -1) - 1
        around = next((loop for loop in loops if loop.first <= first <= loop.last), None)
        if first <= last and around and (runs := values.steps_with_body(predicate)) is not None:
            parts.append(_Stretch(first, last, runs / around.runs))
    return loops + parts, unknown


class _Values:
    """Scalars and predicates of a schedule by name: operation and operands, each set once."""

    def __init__(self, texts: Sequence[str]) -> None:
        text = _COMMENT.sub("", "".join(texts))
        self._defined = {name: (op, operands) for name, op, operands in _DEFINITION.findall(text)}
        self._spilled = dict(reversed(_SPILLED.findall(text)))  # by place, the register stored

    def trips(self, predicate: str) -> int | None:
        """Returns the trips of a loop that ends where a predicate holds; None if unknown."""
        limit = self._limit(predicate, "scmp.ge.s32.totalorder")
        step = limit and self._find(limit[0], "sadd.s32")
        if not limit or not step or not step[0].isdecimal():
            return None
        start = self._find(step[1], "sphi")
        first = start and self._find(start[0], "smov.u32")
        if not first or not first[-1].isdecimal():
            return None
        return max(-(-(limit[1] - int(first[-1])) // int(step[0])), 0)

    def steps_with_body(self, predicate: str) -> int | None:
        """Returns the number of steps in which a counter is within bounds; None: no such test."""
        if not (bounds := self._find(predicate, "pnand")):
            return None
        first = self._limit(bounds[0], "scmp.ge.s32.totalorder")
        behind = self._limit(bounds[1], "scmp.lt.s32.totalorder")
        return behind[1] - first[1] if first and behind and first[0] == behind[0] else None

    def _limit(self, predicate: str, operation: str) -> tuple[str, int] | None:
        """Returns a value and the constant that it is compared with."""
        found = self._find(predicate, operation)
        return (found[0], int(found[1])) if found and found[1].isdecimal() else None

    def _find(self, name: str, operation: str) -> list[str]:
        """Returns the operands of a value's operation; none if another operation gives it."""
        for _ in range(_DEEPEST):
            op, text = self._defined.get(name, ("", ""))
            operands = [name or number for name, number in _OPERAND.findall(text)]
            if op == operation:
                return operands
            if op == "sld" and (spill := _SPILL.search(text)):
                name = self._spilled.get(spill[1], "")
            elif (op, *operands[1:]) in _PREDICATE_AS_NUMBER:
                name = operands[0]
            else:
                return []
        return []
