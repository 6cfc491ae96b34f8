"""Cycles of a Pallas kernel, from the schedule that the compiler writes of it.

`estimated_cycles` covers XLA's own operations alone. When asked, libtpu writes the final
schedule of every operation: bundles of instructions that issue together, one bundle a cycle. A loop
(the grid is one) ends in a branch back; its trips follow from the counter that its exit test
compares with a constant. A pipelined grid has two steps more, in which the body is branched over.
Whatever else is branched over counts in full, so that figures are upper bounds.

What bundles wait for is memory: copies between HBM and the chip run beside the grid's steps, and a
call takes the longer of the two.
"""

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

import numpy as np

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
_COPY = re.compile(r"= dma\.(\w+)_to_(\w+).*?/\*size_in_granules=\*/(\d+)", re.DOTALL)
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

# Bytes of the unit in which copies are counted, seen on copies of known size.
_GRANULE: Final = 32
_GRANULES: Final[Mapping[str, int]] = {"v4": 512}
# Both cores of a chip work on one call, each on its part of the grid.
_TWO_CORES: Final = "megacore core id"


@contextlib.contextmanager
def written_to(folder: Path) -> Iterator[None]:
    """While libtpu is loaded inside, its flags have it write schedules to a folder.

    Libtpu reads its flags once. They are the user's again afterwards.
    """
    before = os.environ.get(_FLAGS)
    os.environ[_FLAGS] = f"{before or ''} {_DUMP.format(folder=folder)}".strip()
    try:
        yield
    finally:
        os.environ.pop(_FLAGS)
        if before is not None:
            os.environ[_FLAGS] = before


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelSchedule:
    """What one call of a kernel takes on one device."""

    bundles: int  # executed, those of loops times their trips: cycles without waiting
    slots: Mapping[str, int]  # by unit of the core, the bundles that it alone would need
    copied_bytes: int  # between HBM and the chip
    steps: int  # of the outermost loop, the grid
    unknown_loops: int  # whose trips the schedule does not say; they count once
    products: int = 0  # cycles that the matrix units need at their peak, where it is known

    def cycles(self, *, bytes_per_cycle: float) -> int:
        """Returns the cycles of a call: its bundles or its copies, whichever take longer.

        Nothing runs beside the first step's fetch and the last one's write.
        `bytes_per_cycle` is the rate of one device's HBM.
        """
        copies, work = self.copied_bytes / bytes_per_cycle, max(self.bundles, self.products)
        return round(max(work, copies) + min(work, copies) / max(self.steps, 1))


def read_schedules(
    folder: Path, kernels: Mapping[str, str], *, accelerator: str
) -> dict[str, KernelSchedule]:
    """Returns the schedules of calls by name; one that the compiler did not write is absent.

    Of calls of one kernel the compiler schedules the first alone: the others are the same.
    The folder is that of `written_to`; `kernels` says what each instruction calls, by its name.
    """
    files: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.iterdir()):
        if found := _FILE.match(path.name):
            files.setdefault(found[1], {})[found[2].partition("-")[0]] = path
    granule = _GRANULES.get(accelerator, _GRANULE)
    own = {
        name: read_schedule(pair["bundles"].read_text(), pair["hlo"].read_text(), granule=granule)
        for stem, pair in files.items()
        if (name := stem.partition("-")[2]) in kernels and len(pair) == 2
    }
    of_kernel = {kernels[name]: schedule for name, schedule in own.items()}
    return {
        name: own.get(name) or of_kernel[called]
        for name, called in kernels.items()
        if called in of_kernel
    }


def read_schedule(bundles: str, utilization: str, *, granule: int) -> KernelSchedule:
    """Returns the schedule that the two files of a kernel describe.

    `bundles`: text of ``final_bundles``; `utilization`: of
    ``final_hlo-static-per-bundle-utilization``, a row for each bundle; `granule`: bytes of the unit
    in which copies are counted.
    """
    texts = _split(bundles)
    stretches, unknown = _loops(texts)
    weights = np.ones(len(texts))
    for one in stretches:
        weights[one.first : one.last + 1] *= one.runs
    copied = sum(
        weight * granule * int(size)
        for text, weight in zip(texts, weights.tolist(), strict=True)
        for source, target, size in _COPY.findall(text)
        if "hbm" in (source, target)
    )
    _, names, capacity, _, *rows = utilization.rstrip().splitlines()
    used = np.asarray([row.split() for row in rows], dtype=int)
    slots = weights @ used / np.asarray(capacity.split(), dtype=int)
    by_slot = zip(map(str.strip, names.split(",")), slots.tolist(), strict=True)
    return KernelSchedule(
        bundles=round(weights.sum()),
        slots={
            name: round(bundles) for name, bundles in sorted(by_slot, key=lambda slot: -slot[1])
        },
        copied_bytes=round(copied) * (2 if _TWO_CORES in bundles else 1),
        steps=round(max((one.runs for one in stretches), default=1)),
        unknown_loops=unknown,
    )


class _Stretch(NamedTuple):
    """Bundles `first` to `last`, which run so many times for each time that what is around does."""

    first: int
    last: int
    runs: float


def _split(bundles: str) -> list[str]:
    """Returns the text of each bundle; one may take several lines."""
    starts = [found.start() for found in _BUNDLE.finditer(bundles)]
    return [
        bundles[start:end] for start, end in zip(starts, [*starts[1:], len(bundles)], strict=True)
    ]


def _loops(texts: Sequence[str]) -> tuple[list[_Stretch], int]:
    """Returns loops and what of them does not always run, and how many loops are unknown."""
    begins = {region: at for at, text in enumerate(texts) for region in _BEGINS.findall(text)}
    values = _Values.of(texts)
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

    def __init__(self, defined: Mapping[str, tuple[str, str]], spilled: Mapping[str, str]) -> None:
        self._defined, self._spilled = defined, spilled

    @classmethod
    def of(cls, texts: Sequence[str]) -> Self:
        """Reads them; a register that was spilled is what was stored."""
        text = _COMMENT.sub("", "".join(texts))
        defined = {name: (op, operands) for name, op, operands in _DEFINITION.findall(text)}
        return cls(defined, dict(reversed(_SPILLED.findall(text))))

    def trips(self, predicate: str) -> int | None:
        """Returns how often a loop runs that ends where a predicate holds; None if unknown."""
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
        """Returns in how many steps a counter is not outside its bounds; None: something else."""
        if not (bounds := self._find(predicate, "pnand")):
            return None
        first = self._limit(bounds[0], "scmp.ge.s32.totalorder")
        behind = self._limit(bounds[1], "scmp.lt.s32.totalorder")
        return behind[1] - first[1] if first and behind and first[0] == behind[0] else None

    def _limit(self, predicate: str, operation: str) -> tuple[str, int] | None:
        """Returns what is compared with which constant."""
        found = self._find(predicate, operation)
        return (found[0], int(found[1])) if found and found[1].isdecimal() else None

    def _find(self, name: str, operation: str) -> list[str]:
        """Returns the operands of the operation that gives a value; none if another does."""
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
