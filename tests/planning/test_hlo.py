"""Hand-written programs: shapes, trip counts of loops, cycles, products."""

import re
import textwrap

import pytest

from bert_jax.parallel.accelerators import ACCELERATORS
from bert_jax.planning.compilation.cycles import Cycles, count_cycles
from bert_jax.planning.compilation.hlo import parse_hlo, parse_shape
from bert_jax.planning.compilation.program import Program

V5E = ACCELERATORS["v5e"]

CYCLES = 'backend_config={{"window_config":{{"estimated_cycles":"{}"}}}}'


def cycles(count: int) -> str:
    return CYCLES.format(count)


def module(text: str) -> Program:
    return Program.of(parse_hlo(textwrap.dedent(text)))


def counted(text: str) -> Cycles:
    return count_cycles(module(text), {}, V5E)


# A loop like the compiler's windowed product. It counts from 0 to 8 in steps of two. The bound is
# in the state of the loop, and the step is a sum of two values. The body has a scan of 3 steps.
NESTED = f"""
HloModule jit_step, is_scheduled=true

FileNames
1 "/home/me/bert_jax/model/layers.py"

%fused_product (p: f32[8,8]) -> f32[8,8] {{
  %p = f32[8,8]{{1,0:T(8,128)}} parameter(0)
  ROOT %convolution.1 = f32[8,8]{{1,0:T(8,128)}} convolution(%p, %p), dim_labels=bf_io->bf
}}

%fused_compare (a: s32[], b: s32[]) -> pred[] {{
  %a = s32[] parameter(0)
  %b = s32[] parameter(1)
  ROOT %lt = pred[] compare(%a, %b), direction=LT
}}

%inner_condition (state: (s32[], f32[8,8])) -> pred[] {{
  %state = (s32[], f32[8,8]) parameter(0)
  %three = s32[] constant(3)
  %at = s32[] get-tuple-element(%state), index=0
  ROOT %less = pred[] fusion(%at, %three), kind=kLoop, calls=%fused_compare
}}

%inner_body (state.1: (s32[], f32[8,8])) -> (s32[], f32[8,8]) {{
  %state.1 = (s32[], f32[8,8]) parameter(0)
  %one = s32[] constant(1)
  %at.1 = s32[] get-tuple-element(%state.1), index=0
  %next = s32[] add(%at.1, %one)
  %x = f32[8,8]{{1,0:T(8,128)}} get-tuple-element(%state.1), index=1
  %product = f32[8,8]{{1,0:T(8,128)}} fusion(%x), kind=kOutput, calls=%fused_product, \
metadata={{op_name="jit(step)/dot_general" stack_frame_id=2}}, {cycles(100)}
  ROOT %tuple.1 = (s32[], f32[8,8]) tuple(%next, %product)
}}

%outer_condition (state.2: (u32[], f32[8,8], u32[])) -> pred[] {{
  %state.2 = (u32[], f32[8,8], u32[]) parameter(0)
  %at.2 = u32[] get-tuple-element(%state.2), index=0
  %bound = u32[] get-tuple-element(%state.2), index=2
  ROOT %greater = pred[] compare(%bound, %at.2), direction=GT
}}

%outer_body (state.3: (u32[], f32[8,8], u32[])) -> (u32[], f32[8,8], u32[]) {{
  %state.3 = (u32[], f32[8,8], u32[]) parameter(0)
  %one.1 = u32[] constant(1)
  %at.3 = u32[] get-tuple-element(%state.3), index=0
  %half = u32[] add(%at.3, %one.1)
  %whole = u32[] add(%half, %one.1)
  %bound.1 = u32[] get-tuple-element(%state.3), index=2
  %x.1 = f32[8,8]{{1,0:T(8,128)}} get-tuple-element(%state.3), index=1
  %zero = s32[] constant(0)
  %first = s32[] copy(%zero)
  %enter = (s32[], f32[8,8]) tuple(%first, %x.1)
  %while.1 = (s32[], f32[8,8]) while(%enter), condition=%inner_condition, body=%inner_body
  %y = f32[8,8]{{1,0:T(8,128)}} get-tuple-element(%while.1), index=1
  %norm = f32[8,8]{{1,0:T(8,128)}} add(%y, %y), {cycles(7)}
  ROOT %tuple.2 = (u32[], f32[8,8], u32[]) tuple(%whole, %norm, %bound.1)
}}

%cheap (c: f32[8,8]) -> f32[8,8] {{
  %c = f32[8,8] parameter(0)
  ROOT %negate = f32[8,8] negate(%c), {cycles(5)}
}}

%dear (d: f32[8,8]) -> f32[8,8] {{
  %d = f32[8,8] parameter(0)
  ROOT %exponential = f32[8,8] exponential(%d), {cycles(50)}
}}

ENTRY %main (x.2: f32[8,8], flag: pred[]) -> f32[8,8] {{
  %x.2 = f32[8,8]{{1,0:T(8,128)}} parameter(0)
  %flag = pred[] parameter(1)
  %zero.1 = u32[] constant(0)
  %eight = u32[] constant(8)
  %enter.1 = (u32[], f32[8,8], u32[]) tuple(%zero.1, %x.2, %eight)
  %while.2 = (u32[], f32[8,8], u32[]) while(%enter.1), condition=%outer_condition, body=%outer_body
  %y.1 = f32[8,8]{{1,0:T(8,128)}} get-tuple-element(%while.2), index=1
  %branch = f32[8,8] conditional(%flag, %y.1, %y.1), branch_computations={{%cheap, %dear}}
  ROOT %bits = u32[1024]{{0:T(128)}} rng-bit-generator(%y.1), algorithm=rng_default
}}
"""


_ELEMENT = re.compile(r"^  %([\w.]+) = \S+ get-tuple-element\((\S+)\), index=(\d+)\n", re.M)


def with_short_elements(text: str) -> str:
    """Writes elements of tuples as libtpu 0.0.50 does: as operand ``%state#1``."""
    for name, of, index in _ELEMENT.findall(text):
        text = re.sub(rf"%{re.escape(name)}(?![\w.])", f"{of}#{index}", text)
    return re.sub(r"^  %\S+ = \S+ get-tuple-element.*\n", "", text, flags=re.M)


@pytest.mark.parametrize("text", [NESTED, with_short_elements(NESTED)], ids=["long", "short"])
def test_a_loops_body_counts_once_per_trip(text: str) -> None:
    program = module(text)
    trips = {found.name: found.trips for found in program.operations}
    assert (trips["while.2"], trips["while.1"], trips["product"]) == (1, 4, 12)
    found = counted(text)
    assert found.product_flops == 12 * 2 * 8 * 8 * 8
    assert found.unknown_loops == ()
    # A fusion counts once. Of a conditional, only the costlier branch counts. The cycles of random
    # bits are computed from their 4096 + 256 bytes.
    assert found.total - found.by_bytes == 12 * 100 + 4 * 7 + 50
    assert found.by_bytes == round((4096 + 256) / V5E.bytes_per_cycle) > 0
    assert found.by_kind["matrix products"] == 1200
    assert found.by_kind["random bits"] == found.by_bytes


def test_the_largest_number_of_cycles_is_no_estimate() -> None:
    """The compiler writes it for operations that it cannot estimate."""
    unknown = counted(NESTED.replace(cycles(7), cycles(2**63 - 1)))
    known = counted(NESTED)
    moved = 4 * round(3 * 8 * 8 * 4 / V5E.bytes_per_cycle)
    assert unknown.by_bytes == known.by_bytes + moved
    assert unknown.total == known.total - 4 * 7 + moved


def test_a_data_dependent_loop_is_named_and_counts_once() -> None:
    """The bound of the loop is an argument of the program."""
    text = NESTED.replace("%eight = u32[] constant(8)", "%eight = u32[] convert(%flag)")
    found = counted(text)
    assert found.unknown_loops == ("while.2",)
    assert found.by_kind["matrix products"] == 300


def test_an_element_of_a_tuple_has_only_its_own_bytes() -> None:
    text = """
    ENTRY %main (a: f32[1024]) -> f32[1024] {
      %a = f32[1024]{0} parameter(0)
      %both = (f32[4096]{0}, f32[1024]{0}) fusion(%a), kind=kLoop, calls=%fused
      ROOT %negate = f32[1024]{0} negate(%both#1)
    }
    %fused (b: f32[1024]) -> (f32[4096], f32[1024]) {
      %b = f32[1024]{0} parameter(0)
      %wide = f32[4096]{0} broadcast(%b), dimensions={}
      ROOT %tuple = (f32[4096]{0}, f32[1024]{0}) tuple(%wide, %b)
    }
    """
    moved = {each.name: each.hbm_bytes for each in module(text).operations}
    assert moved["both"] == 4 * (4096 + 1024 + 1024)
    assert moved["negate"] == 4 * (1024 + 1024)


def test_arrays_have_bytes_and_a_memory_space() -> None:
    result, stacked = parse_shape(
        "(bf16[16,128]{1,0:T(8,128)(2,1)S(1)}, /*index=1*/f32[]{:T(128)})"
    )
    assert (result.bytes, result.in_hbm) == (4096, False)
    assert (stacked.bytes, stacked.in_hbm) == (4, True)


B, H, L, D = 16, 12, 32, 64


def of(left: str, right: str, out: str, attributes: str, opcode: str = "convolution") -> int:
    """Returns the FLOPs of one product."""
    text = f"""
ENTRY %main (a: {left}, b: {right}) -> {out} {{
  %a = {left} parameter(0)
  %b = {right} parameter(1)
  ROOT %product = {out} {opcode}(%a, %b), {attributes}
}}
"""
    return counted(text).product_flops


@pytest.mark.parametrize(
    ("left", "right", "out", "attributes", "expected"),
    [
        # x [L, B, D] · w [D, 3 D]
        (
            *(f"bf16[{L},{B},{D}]", f"bf16[{D},{3 * D},1]", f"bf16[{L},{B},{3 * D}]"),
            *("window={size=1}, dim_labels=0bf_io0->0bf", 2 * B * L * D * 3 * D),
        ),
        # Attention scores: the compiler writes a product per row and head as a dilated window.
        (
            *(f"bf16[{B},{L},{H},{D}]", f"bf16[{B},{L},{H},{D}]", f"f32[{B},{H},{L},{L}]"),
            f"window={{size={B}x{H} stride={B - 1}x{H - 1} lhs_dilate={B}x{H}}}, "
            "dim_labels=0b1f_0o1i->01bf",
            2 * B * H * L * L * D,
        ),
        # Padding is not multiplied: the four outputs use 2, 3, 3 and 2 positions.
        (
            *("f32[1,4,8]", "f32[3,8,5]", "f32[1,4,5]"),
            *("window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f", 2 * 8 * 5 * (2 + 3 + 3 + 2)),
        ),
    ],
    ids=["dense", "attention", "padded"],
)
def test_a_product_counts_its_multiplications(
    left: str, right: str, out: str, attributes: str, expected: int
) -> None:
    assert of(left, right, out, attributes) == expected


def test_a_dot_counts_its_contracted_axes() -> None:
    found = of("f32[4,8]", "f32[8,6]", "f32[4,6]", "lhs_contracting_dims={1}", opcode="dot")
    assert found == 2 * 4 * 8 * 6
