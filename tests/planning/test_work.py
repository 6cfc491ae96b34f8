"""FLOPs and bytes that a program executes, against counts by hand."""

import pytest

from bert_jax.planning.compilation.execution import Program
from bert_jax.planning.compilation.hlo import parse_hlo
from bert_jax.planning.compilation.kernel_schedule import KernelSchedule
from bert_jax.planning.compilation.work import count_work
from tests.planning.test_hlo import NESTED, module

B, H, L, D = 16, 12, 32, 64


def of(left: str, right: str, out: str, attributes: str, opcode: str = "convolution") -> int:
    """FLOPs of one product."""
    text = f"""
ENTRY %main (a: {left}, b: {right}) -> {out} {{
  %a = {left} parameter(0)
  %b = {right} parameter(1)
  ROOT %product = {out} {opcode}(%a, %b), {attributes}
}}
"""
    return count_work(Program.of(parse_hlo(text)), {}).product_flops


@pytest.mark.parametrize(
    ("left", "right", "out", "attributes", "expected"),
    [
        # x [L, B, D] · w [D, 3 D]
        (
            *(f"bf16[{L},{B},{D}]", f"bf16[{D},{3 * D},1]", f"bf16[{L},{B},{3 * D}]"),
            *("window={size=1}, dim_labels=0bf_io0->0bf", 2 * B * L * D * 3 * D),
        ),
        # Scores: a product for each row and head, which the compiler writes as a dilated window.
        (
            *(f"bf16[{B},{L},{H},{D}]", f"bf16[{B},{L},{H},{D}]", f"f32[{B},{H},{L},{L}]"),
            f"window={{size={B}x{H} stride={B - 1}x{H - 1} lhs_dilate={B}x{H}}}, "
            "dim_labels=0b1f_0o1i->01bf",
            2 * B * H * L * L * D,
        ),
        # Padding meets nothing: of 2 × 3 positions in each of 4 outputs only those inside count.
        (
            *("f32[1,4,8]", "f32[3,8,5]", "f32[1,4,5]"),
            *("window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f", 2 * 8 * 5 * (2 + 3 + 3 + 2)),
        ),
    ],
    ids=["dense", "attention", "padded"],
)
def test_a_product_counts_what_it_multiplies(
    left: str, right: str, out: str, attributes: str, expected: int
) -> None:
    assert of(left, right, out, attributes) == expected


def test_a_dot_counts_its_contracted_axes() -> None:
    found = of("f32[4,8]", "f32[8,6]", "f32[4,6]", "lhs_contracting_dims={1}", opcode="dot")
    assert found == 2 * 4 * 8 * 6


def test_products_in_loops_count_as_often_as_they_run() -> None:
    assert count_work(module(NESTED), {}).product_flops == 12 * 2 * 8 * 8 * 8


def test_kernels_count_what_they_declare_and_what_they_copy() -> None:
    text = """
ENTRY %main (a: f32[8,8]) -> f32[8,8] {
  %a = f32[8,8] parameter(0)
  ROOT %mine.1 = f32[8,8] custom-call(%a), custom_call_target="tpu_custom_call", \
backend_config={"custom_call_config":{"body":"x","cost_estimate":{"flops":"700","bytes":"9"}}}
}
"""
    schedule = KernelSchedule(bundles=1, slots={}, copied_bytes=123, steps=1, unknown_loops=0)
    found = count_work(Program.of(parse_hlo(text)), {"mine.1": schedule})
    assert (found.flops, found.kernel_flops, found.hbm_bytes) == (700, 700, 123)
