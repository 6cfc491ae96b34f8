"""Schedules of kernels: recorded, hand-written, and compiled here."""

import json
from pathlib import Path

import pytest

from bert_jax.parallel.accelerators import ACCELERATORS
from bert_jax.parallel.topology import TpuTopology
from bert_jax.planning.compilation.cycles import MATRIX_UNITS, by_schedule, count_cycles
from bert_jax.planning.compilation.hlo import parse_hlo
from bert_jax.planning.compilation.kernels import read_schedule, read_schedules
from bert_jax.planning.compilation.op_cycles import flops_per_cycle
from bert_jax.planning.compilation.program import KERNEL, Program
from tests.compiler_pair import compiles_for_tpus
from tests.planning.tpu_programs import INNER, LANES, OUTER, ROWS, STEPS, TURNS
from tests.project import ROOT
from tests.tpu_compiler import compile_for_tpus

GOLDEN = ROOT / "tests/golden/planning"
V5E = ACCELERATORS["v5e"]

# The compiler spills the counter, and the predicate that skips the body in two of 50 steps.
SPILLED = """
     0   :  { %s1 = smov.u32 0  ;;  %s2 = sld [smem:[#allocation9]] /* megacore core id */ }
   0x1 LB: > { %s3 = sphi %s1, %s4 } /* Start region 7 */
   0x2   : > { %90 = sst [smem:[#allocation5_spill]] %s3  ;;  %p1 = scmp.ge.s32.totalorder %s3, 1 }
   0x3   : > { %p2 = scmp.lt.s32.totalorder %s3, 49 }
   0x4   : > { %p3 = pnand %p1, %p2 }
   0x5   : > { %s5 = scalar_select /*predicate=*/%p3, /*on_true=*/1, /*on_false=*/0 }
   0x6   : > { %p4 = scmp.ne.s32.totalorder %s5, 0 }
   0x7   : > { %8 = sbr.rel (%p4) target = $region8 }
   0x8   :  {}
   0x9   :  {}
   0xa   :  {}
   0xb   :  {}
   0xc   : > { %91 = shalt.err (!%p9) /* BoundsCheck of dma.hbm_to_vmem
     in two lines */ }
   0xd   : > { %92 = dma.hbm_to_vmem /*hbm=*/%s6, /*vmem=*/%s7 }
   0xe PF: > { %s8 = sld [smem:[#allocation5_spill]] } /* Start/End empty region 8 */
   0xf   : > { %s4 = sadd.s32 1, %s8 }
  0x10   : > { %p5 = scmp.ge.s32.totalorder %s4, 50 /* loop exit test */ }
  0x11   :  { %9 = sbr.rel (!%p5) target = $region7 }
  0x12   :  {}
  0x13   :  {}
  0x14   :  {}
  0x15   :  {} /* End region 7 */
  0x16   :  {} /* exit bundle */
"""

# A grid of 3 × 8 steps; the compiler's comment names the size of the second axis. At the first of
# its indices, the kernel starts a sum.
ONCE_PER_ROW = """
     0   :  { %s1 = smov.u32 0 }
   0x1 LB: > { %s3 = sphi %s1, %s4  ;;  %s7 = sphi %s1, %s8 /* phi copy :: iteration index, \
stage = 1 iter bound = 8 :: iteration index, stage = 0 iter bound = 8 */ } /* Start region 5 */
   0x2   : > { %p1 = scmp.ne.s32.totalorder %s7, 0 }
   0x3   : > { %9 = sbr.rel (%p1) target = $region6 }
   0x4   :  {}
   0x5   :  {}
   0x6   :  {}
   0x7   :  {}
   0x8   : > { %10 = vst [vmem:[%s2]] %v1 }
   0x9   : > { %11 = vst [vmem:[%s2 + $0x8]] %v1 }
   0xa   : > { %12 = vst [vmem:[%s2 + $0x10]] %v1 }
   0xb PF: > { %s4 = sadd.s32 1, %s3 } /* Start/End empty region 6 */
   0xc   : > { %p5 = scmp.ge.s32.totalorder %s4, 24 /* loop exit test */ }
   0xd   :  { %13 = sbr.rel (!%p5) target = $region5 }
   0xe   :  {}
   0xf   :  {}
  0x10   :  {}
  0x11   :  {} /* End region 5 */
"""


@pytest.mark.parametrize("constant", ["smov.u32", "smov"])  # depends on the version of libtpu
def test_recorded_nested_loops_have_their_trip_counts(constant: str) -> None:
    found = read_schedule(
        (GOLDEN / "nested.final_bundles.txt").read_text().replace("smov.u32", constant),
        (GOLDEN / "nested.utilization.txt").read_text(),
    )
    around, body = 9 + 7, 16  # two of 18 steps skip the body
    inner, outer, third, between = 10 * 7 * 5, 8 * 5, 14, 3 + 6 + 1
    assert found.bundles == 2 + 18 * around + body * (inner + outer + third + between) + 1
    assert (found.steps, found.unknown_loops) == (18, 1)
    assert found.slots["VALU"] < found.bundles
    assert max(found.slots, key=lambda slot: found.slots[slot]) == "SALU"


def utilization(bundles: int) -> str:
    """Returns a table in which each bundle uses one of four places of a unit."""
    rows = "\n".join(["1 0"] * bundles)
    return f"== CAPACITY:\nVALU, SALU\n 4 2\n== UTILIZATION:\n{rows}\n"


def test_spilled_counters_are_followed() -> None:
    found = read_schedule(SPILLED, utilization(23))
    assert found.bundles == 2 + 50 * 19 + 48 * 2
    assert found.unknown_loops == 0
    assert found.slots["VALU"] == round(found.bundles / 4)


@pytest.mark.parametrize(("index", "runs"), [("%s7, 0", 24 // 8), ("%s7, 3", 3), ("%s3, 0", 24)])
def test_code_for_one_index_of_an_axis_runs_once_per_pass(index: str, runs: int) -> None:
    """The size of the axis of the counter `%s3` is unknown, so its code counts in every step."""
    found = read_schedule(ONCE_PER_ROW.replace("%s7, 0", index), utilization(18))
    assert found.bundles == 1 + 24 * 14 + runs * 3
    assert (found.steps, found.unknown_loops) == (24, 0)


SLICES = [
    topology
    for accelerator in ACCELERATORS.values()
    for shape in accelerator.shapes
    if accelerator.name in ("v4", "v5e", "v6e")
    and 2 <= (topology := TpuTopology(accelerator, shape)).chips <= 16
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs `tpu_programs`; returns the folder with its output."""
    made = tmp_path_factory.mktemp("programs")
    compile_for_tpus("tests.planning.tpu_programs", made, *(each.name for each in SLICES))
    return made


@compiles_for_tpus
def test_a_compiled_slice_has_its_real_hosts(folder: Path) -> None:
    assert json.loads((folder / "devices.json").read_text()) == {
        f"{each.name} {count}": [each.devices * count, each.hosts() * count]
        for each in SLICES
        for count in (1, 2)
    }


@compiles_for_tpus
def test_compiled_nested_loops_have_their_trip_counts(folder: Path) -> None:
    program = Program.of(parse_hlo((folder / "loops.txt").read_text()))
    found = count_cycles(program, {}, V5E)
    assert len(found.unknown_loops) == 1  # the data-dependent loop
    assert [one.trips for one in program.operations if "tanh" in one.name] == [OUTER * INNER]
    sums = [one.trips for one in program.operations if one.instruction.opcode == "all-reduce"]
    assert OUTER in sums


@compiles_for_tpus
def test_operations_take_their_schedule_memory_or_products(folder: Path) -> None:
    module = parse_hlo((folder / "loops.txt").read_text())
    schedules = read_schedules(folder, Program.of(module))
    program = Program.of(module, by_schedule(schedules, V5E))
    estimated = [one for one in program.operations if one.instruction.cycles]
    assert len(estimated) > 5
    for one in estimated:
        found = schedules[one.code]  # operations with equal code share a schedule
        bytes_, flops = one.hbm_bytes / V5E.bytes_per_cycle, one.product_flops
        most = max(found.bundles, bytes_, flops / flops_per_cycle(V5E))
        assert one.cycles == (one.instruction.cycles if found.unknown_loops else round(most))


@compiles_for_tpus
def test_a_compiled_kernel_has_its_loops_copies_and_calls(folder: Path) -> None:
    program = Program.of(parse_hlo((folder / "kernel.txt").read_text()))
    schedules = read_schedules(folder, program)
    (schedule,) = [schedules[one.code] for one in program.operations if one.kernel]
    assert {"VALU", "SALU"} < schedule.slots.keys()
    assert not schedule.slots.keys().isdisjoint(MATRIX_UNITS)
    counted = count_cycles(program, schedules, V5E)
    (one,) = counted.kernels
    assert (one.name, one.calls) == ("nested", TURNS)
    assert counted.uncounted == {}
    assert counted.unknown_loops == ()
    assert counted.in_kernels == counted.by_kind[KERNEL] == TURNS * one.cycles
    # An iteration of the inner loop takes a few bundles. Other code takes few bundles in total.
    assert 5 < one.bundles / (STEPS * OUTER * INNER) < 40
    assert one.copied_bytes >= STEPS * ROWS * LANES * 4
    assert one.copied_bytes <= (STEPS + 2) * (ROWS + 8) * LANES * 4
    assert one.cycles >= one.copied_bytes / V5E.bytes_per_cycle > one.bundles
