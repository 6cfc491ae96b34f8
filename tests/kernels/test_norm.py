"""Compares the kernels of `add_norm` and `pre_norm`, interpreted, with plain JAX.

test_alone_compile.py compiles them for TPUs.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import strategies as st

from bert_jax.model.add_norm import add_norm, pre_norm
from bert_jax.model.dropout import tile_factors
from bert_jax.model.layer_stack import REMAT
from bert_jax.model.layers import Dense, LayerNorm, RmsNorm, ScaledNorm
from bert_jax.model.section import Execution
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from tests.kernels.search import Outcome, assert_near, mostly, refused, search, shapes
from tests.support import relative_error, small_architecture

pytestmark = pytest.mark.slow


@functools.partial(jax.jit, static_argnames=("norm", "rate", "remat"))
def end(norm: Any, arrays: Any, vectors: Any, *, rate: float, remat: Any = "none") -> Any:
    """Returns the gradients of the weighted sum of the output, then the output."""
    residual, product, weights = arrays
    architecture = small_architecture(hidden_size=residual.shape[-1])
    execution = Execution(dtype=residual.dtype.name, norm=norm)
    key = jax.random.key(3)

    def value(residual: Any, product: Any, vectors: Any) -> tuple[Any, Any]:
        width = residual.shape[-1]
        both: Any = {"architecture": architecture, "execution": execution}
        dense = Dense((width, width), ("mlp", "embed"), outputs=1, **both)
        ends = LayerNorm(**both)
        dense.bias, ends.scale, ends.bias = map(nnx.Param, vectors)
        factors = None
        if rate:
            factors = tile_factors(residual.shape, key, rate)
        run = functools.partial(add_norm, dense=dense, norm=ends, rate=rate, factors=factors)
        out = REMAT[remat](run)(residual, product)
        return (out * weights).astype(jnp.float32).sum(), out

    return jax.grad(value, (0, 1, 2), has_aux=True)(residual, product, vectors)


@functools.partial(jax.jit, static_argnames=("norm", "kind"))
def start(norm: Any, arrays: Any, scale: Any, *, kind: type[ScaledNorm] = ScaledNorm) -> Any:
    """Returns gradients and output of a weighted sum of a half's input and of its norm."""
    x, of_residual, of_normed = arrays
    execution = Execution(dtype=x.dtype.name, norm=norm)
    module = kind(architecture=small_architecture(hidden_size=x.shape[-1]), execution=execution)

    def value(x: Any, scale: Any) -> tuple[Any, Any]:
        residual, normed = pre_norm(x, scale, norm=module)
        total = residual * of_residual + normed * of_normed
        return total.astype(jnp.float32).sum(), (residual, normed)

    return jax.grad(value, (0, 1), has_aux=True)(x, scale)


def drawn(rows: int, length: int, width: int, dtype: Any = jnp.float32) -> tuple[Any, Any]:
    """Returns residual, product and weights; bias near 0, scale near 1, bias near 0."""
    rng = np.random.default_rng(0)
    arrays = [jnp.asarray(x, dtype) for x in rng.standard_normal((3, rows, length, width))]
    vectors = 0.3 * rng.standard_normal((3, width)) + np.array([[0.0], [1.0], [0.0]])
    return arrays, tuple(jnp.asarray(x, jnp.float32) for x in vectors)


def assert_same(found: Any, expected: Any) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        assert relative_error(one, other) < 2e-6


@pytest.mark.parametrize(
    ("rows", "length", "width", "rate"),
    [
        (3, 128, 128, 0.0),
        (6, 77, 256, 0.1),  # rows with partly filled registers, several per block
        (2, 400, 768, 0.3),  # several tiles of a padded row
        (1, 640, 1024, 0.1),
        (5, 3, 128, 0.1),
    ],
)
def test_it_equals_xla(rows: int, length: int, width: int, rate: float) -> None:
    arrays, vectors = drawn(rows, length, width)
    found, expected = (end(norm, arrays, vectors, rate=rate) for norm in ("fused", "xla"))
    assert_same(found, expected)
    dropped = [np.asarray(gradients[1] == 0) for gradients, _ in (found, expected)]
    np.testing.assert_array_equal(dropped[0], dropped[1])
    assert dropped[0].mean() == pytest.approx(rate, abs=0.03)


@pytest.mark.parametrize(
    ("rows", "length", "width"), [(6, 77, 256), (2, 400, 768), (1, 640, 1024), (5, 3, 128)]
)
@pytest.mark.parametrize("kind", [ScaledNorm, RmsNorm])
def test_the_start_of_a_half_equals_xla(
    rows: int, length: int, width: int, kind: type[ScaledNorm]
) -> None:
    arrays, (_, scale, _) = drawn(rows, length, width)
    arrays[0] = arrays[0] + 1  # a mean, which only LayerNorm subtracts
    assert_same(*(start(norm, arrays, scale, kind=kind) for norm in ("fused", "xla")))


@pytest.mark.parametrize("half", ["start", "end"])
def test_bfloat16_error_is_no_larger_than_xlas(half: str) -> None:
    wide, narrow = (drawn(2, 128, 256, dtype) for dtype in (jnp.float32, jnp.bfloat16))

    def run(norm: str, arrays: Any, vectors: Any) -> list[Any]:
        if half == "start":
            return jax.tree.leaves(start(norm, arrays, vectors[1]))
        return jax.tree.leaves(end(norm, arrays, vectors, rate=0.1))

    expected = run("xla", *wide)
    errors = [
        [
            relative_error(one.astype(jnp.float32), other)
            for one, other in zip(run(norm, *narrow), expected, strict=True)
        ]
        for norm in ("fused", "xla")
    ]
    assert max(errors[0]) < 1.5 * max(errors[1]) < 0.03


@pytest.mark.parametrize("norm", ["fused", "xla"])
def test_dropout_keeps_the_mean_of_a_bfloat16_gradient(norm: str) -> None:
    rate = 0.1
    of_residual, of_product = (
        np.asarray(each, np.float64)
        for each in end(norm, *drawn(4, 256, 256, jnp.bfloat16), rate=rate)[0][:2]
    )
    kept = of_product != 0
    size = abs(of_product[kept]).sum() * (1 - rate) / abs(of_residual[kept]).sum()
    assert size == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("ratio", [0, 100, 3000])
def test_a_large_mean_costs_no_precision(ratio: int) -> None:
    """The mean is `ratio` standard deviations. The error is only float32 rounding."""
    bound = 1e-6 + 1e-7 * ratio
    (residual, product, weights), (_, scale, bias) = drawn(1, 32, 256)
    arrays = residual + ratio, jnp.zeros_like(product), weights
    x, of_out, scales = (np.asarray(each, np.float64) for each in (arrays[0], weights, scale))
    x -= x.mean(axis=-1, keepdims=True)
    inverse = 1 / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + 1e-12)
    normed, scaled = x * inverse, of_out * scales
    of_x = scaled - scaled.mean(axis=-1, keepdims=True)
    of_x = inverse * (of_x - normed * (scaled * normed).mean(axis=-1, keepdims=True))
    for norm in ("xla", "fused"):
        gradients, out = end(norm, arrays, (jnp.zeros(256), scale, bias), rate=0.0)
        assert relative_error(out, normed * scales + np.asarray(bias)) < bound, norm
        assert relative_error(gradients[0], of_x) < bound, norm
        assert relative_error(gradients[2][1], (of_out * normed).sum((0, 1))) < bound, norm


def test_a_mesh_splits_rows() -> None:
    arrays, vectors = drawn(8, 48, 128)
    expected = end("xla", arrays, vectors, rate=0.2)
    for section in (MeshSection(data=8), MeshSection(data=2, fsdp=2, tensor=2)):
        with jax.set_mesh(make_mesh(section)):
            assert_same(end("fused", arrays, vectors, rate=0.2), expected)
            assert_same(start("fused", arrays, vectors[1]), start("xla", arrays, vectors[1]))


REGISTERS = st.integers(1, 17).map(lambda n: 128 * n)
CASES = {
    "width": mostly(REGISTERS, st.integers(1, 2200)),
    "rows": st.integers(1, 6),
    "length": mostly(st.integers(1, 100), st.integers(1, 600)),
    "rate": st.sampled_from([0.0, 0.1, 0.5]),
    "half": st.sampled_from(["start", "end"]),
    "dtype": st.sampled_from(["float32", "bfloat16"]),
}


def check(*, width: int, rows: int, length: int, rate: float, half: str, dtype: str) -> Outcome:
    if refused("norm", small_architecture(hidden_size=width, num_attention_heads=1), dtype=dtype):
        return "refused"
    arrays, vectors = drawn(rows, length, width, dtype)
    run = functools.partial(end, rate=rate) if half == "end" else start
    given = vectors if half == "end" else vectors[1]
    found, expected = (run(norm, arrays, given) for norm in ("fused", "xla"))
    assert_near(found, expected, error=2e-5 if dtype == "float32" else 3e-2)
    return "equal"


@shapes(4)
def test_every_shape_equals_xla_or_is_refused(shapes: int) -> None:
    search(check, CASES, shapes=shapes)
