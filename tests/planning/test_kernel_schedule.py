"""Cycles of Pallas kernels: schedules recorded, made by hand, and compiled here."""

import importlib.util
from pathlib import Path

import pytest

from bert_jax.planning.compilation.cycles import KERNEL, count_cycles, kernels_called
from bert_jax.planning.compilation.execution import Program
from bert_jax.planning.compilation.hlo import parse_hlo
from bert_jax.planning.compilation.kernel_schedule import (
    KernelSchedule,
    read_schedule,
    read_schedules,
)
from tests.planning.nested_kernel import INNER, LANES, OUTER, ROWS, STEPS, TURNS
from tests.project import ROOT
from tests.tpu_compiler import compile_for_tpus

GOLDEN = ROOT / "tests/golden/planning"

# The counter and the test that keeps the body out of two of 50 steps have been spilled.
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
   0xd   : > { %92 = dma.hbm_to_vmem /*hbm=*/%s6, /*size_in_granules=*/4, /*vmem=*/%s7 }
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


def test_nested_loops_of_a_recorded_kernel_run_as_often_as_they_say() -> None:
    found = read_schedule(
        (GOLDEN / "nested.final_bundles.txt").read_text(),
        (GOLDEN / "nested.utilization.txt").read_text(),
        granule=32,
    )
    around, body = 9 + 7, 16  # of 18 steps, in two of which the body is branched over
    inner, outer, third, between = 10 * 7 * 5, 8 * 5, 14, 3 + 6 + 1
    assert found.bundles == 2 + 18 * around + body * (inner + outer + third + between) + 1
    assert (found.steps, found.unknown_loops) == (18, 1)
    assert found.slots["VALU"] < found.bundles
    assert max(found.slots, key=lambda slot: found.slots[slot]) == "SALU"


def test_spilled_counters_are_followed_and_both_cores_copy() -> None:
    rows = "\n".join(["1 0"] * 23)
    slots = f"== CAPACITY:\nVALU, SALU\n 4 2\n== UTILIZATION:\n{rows}\n"
    found = read_schedule(SPILLED, slots, granule=512)
    assert found.bundles == 2 + 50 * 19 + 48 * 2
    assert found.unknown_loops == 0
    assert found.slots["VALU"] == round(found.bundles / 4)
    assert found.copied_bytes == 2 * 48 * 4 * 512


def test_a_call_takes_the_longer_of_bundles_and_copies() -> None:
    found = KernelSchedule(bundles=1000, slots={}, copied_bytes=40_000, steps=10, unknown_loops=0)
    assert found.cycles(bytes_per_cycle=100.0) == 1000 + 400 / 10
    assert found.cycles(bytes_per_cycle=10.0) == 4000 + 1000 / 10


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu exists for Linux x86-64 alone"
)
def test_a_kernel_compiled_here_has_its_loops_its_copies_and_its_calls(tmp_path: Path) -> None:
    compile_for_tpus("tests.planning.nested_kernel", "v5e:2x2", tmp_path)
    program = Program.of(parse_hlo((tmp_path / "program.txt").read_text()))
    schedules = read_schedules(tmp_path, kernels_called(program), accelerator="v5e")
    counted = count_cycles(program, bytes_per_cycle=500.0, schedules=schedules)
    (one,) = counted.kernels
    assert (one.name, one.calls) == ("nested", TURNS)
    assert counted.uncounted == {}
    assert counted.unknown_loops == ()
    assert counted.in_kernels == counted.by_kind[KERNEL] == TURNS * one.cycles
    # A turn of the inner loop is a handful of bundles, and nothing else is much.
    assert 5 < one.bundles / (STEPS * OUTER * INNER) < 40
    assert one.copied_bytes >= STEPS * ROWS * LANES * 4
    assert one.copied_bytes <= (STEPS + 2) * (ROWS + 8) * LANES * 4
    assert one.cycles >= one.copied_bytes / 500 > one.bundles
