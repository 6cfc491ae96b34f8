"""Compares `fused` attention, interpreted, with `xla`.

test_alone_compile.py compiles the kernels for TPUs.
"""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from bert_jax.kernels.attention import dropout_words, fused_attention
from bert_jax.kernels.random_bits import tile_seeds
from bert_jax.model.xla_attention import xla_attention
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from tests.kernels.search import (
    PARTS,
    Outcome,
    assert_a_models_cores_are_equal,
    assert_near,
    refused,
    search,
    shapes,
    tensor_mesh,
)
from tests.support import relative_error, small_architecture

pytestmark = pytest.mark.slow


def segments_of(rows: int, length: int) -> jax.Array:
    """Returns rows with two or three examples and padding. The last row is only padding.

    To some tokens of the first example, no token attends.
    """
    ids = np.zeros((rows, length), np.int32)
    for row in range(rows - 1):
        cuts = [0, length // 3, length // 2 + row % 3, length - 5 * (row % 3) - 1]
        for number, (start, stop) in enumerate(itertools.pairwise(cuts), 1):
            ids[row, start:stop] = number
        ids[row, length // 4 : length // 3 - row] = -1
    return jnp.asarray(ids)


def fused(
    q: Any,
    k: Any,
    v: Any,
    bias: Any,
    segments: Any,
    *,
    rate: float,
    causal: bool = False,
    queries: Any = None,
) -> Any:
    """Calls the kernel as `SelfAttention` does."""
    rows, _, heads, columns = k.shape
    merged = [x.reshape(*x.shape[:2], -1) for x in (q, k, v)]
    seeds = tile_seeds(jax.random.key(3), (rows, heads))
    out = fused_attention(
        tuple(merged),
        bias.reshape(3, -1),
        segments,
        dropout_words(seeds, length=k.shape[1], queries_BQ=queries),
        columns=columns,
        rate=rate,
        causal=causal,
        queries_BQ=queries,
    )
    return out.reshape(q.shape)


def xla(
    q: Any,
    k: Any,
    v: Any,
    bias: Any,
    segments: Any,
    *,
    rate: float,
    causal: bool = False,
    queries: Any = None,
) -> Any:
    with_bias = [x + each.astype(x.dtype) for x, each in zip((q, k, v), bias, strict=True)]
    key = jax.random.key(3)
    return xla_attention(
        *with_bias,
        segments,
        dropout_rate=rate,
        dropout_key=key,
        causal=causal,
        queries_BQ=queries,
    )


@functools.partial(jax.jit, static_argnames=("core", "rate", "causal"))
def attend(
    core: Any,
    q: Any,
    k: Any,
    v: Any,
    weights: Any,
    *,
    rate: float,
    causal: bool = False,
    queries: Any = None,
    segments: Any = None,
) -> Any:
    """Returns the gradients of the weighted sum of the output, then the output."""
    segments = segments_of(*k.shape[:2]) if segments is None else segments
    bias = jnp.linspace(-0.5, 0.5, 3 * q.shape[2] * q.shape[3]).reshape(3, *q.shape[2:])

    def value(q: Any, k: Any, v: Any, bias: Any) -> tuple[Any, Any]:
        out = core(q, k, v, bias, segments, rate=rate, causal=causal, queries=queries)
        return (out * weights).astype(jnp.float32).sum(), out

    return jax.grad(value, (0, 1, 2, 3), has_aux=True)(q, k, v, bias)


def assert_same(found: Any, expected: Any) -> None:
    """Compares arrays. All biases are one array: the key bias's gradient alone is only rounding."""
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert relative_error(one, other) < 2e-5


@pytest.mark.parametrize(
    ("rows", "length", "heads", "columns", "rate"),
    [
        (2, 128, 2, 64, 0.0),
        (2, 128, 3, 64, 0.3),  # an odd number of heads in one block
        (11, 128, 1, 64, 0.1),  # a prime number of rows: one row per block
        (10, 40, 1, 32, 0.1),  # two blocks of rows; not a multiple of a register
        (1, 128, 1, 128, 0.1),
        (3, 48, 2, 16, 0.1),  # the other head has too few lanes for encoded segments
        (1, 1000, 1, 32, 0.1),  # padded, two tiles of queries in the backward kernel
        pytest.param(3, 256, 6, 64, 0.1, marks=pytest.mark.chaos),
        pytest.param(3, 512, 3, 64, 0.1, marks=pytest.mark.chaos),  # two stages
        pytest.param(2, 2048, 2, 64, 0.1, marks=pytest.mark.chaos),  # forward: several tiles
    ],
)
def test_it_equals_xla(rows: int, length: int, heads: int, columns: int, rate: float) -> None:
    """`fused` and `xla` drop the same elements in the forward and backward pass."""
    drawn = np.random.default_rng(0).standard_normal((4, rows, length, heads, columns))
    arrays = [jnp.asarray(x, jnp.float32) for x in drawn]
    assert_same(attend(fused, *arrays, rate=rate), attend(xla, *arrays, rate=rate))


@pytest.mark.parametrize(
    ("length", "heads", "queries"),
    [
        (40, 2, None),
        (300, 1, None),  # three tiles, which read different numbers of keys
        (200, 2, 20),
        (300, 1, 300),  # as many queries as tokens, in random order
        pytest.param(1000, 2, None, marks=pytest.mark.chaos),
        pytest.param(1000, 1, 300, marks=pytest.mark.chaos),
    ],
)
def test_left_to_right_it_equals_xla(length: int, heads: int, queries: int | None) -> None:
    rng, rows, columns = np.random.default_rng(8), 2, 64
    k, v = jnp.asarray(rng.standard_normal((2, rows, length, heads, columns)), jnp.float32)
    shape = rows, queries or length, heads, columns
    q, weights = jnp.asarray(rng.standard_normal((2, *shape)), jnp.float32)
    drawn = rng.integers(0, length, shape[:2])
    places = None if queries is None else jnp.asarray(drawn, jnp.int32)
    found, expected = (
        attend(core, q, k, v, weights, rate=0.1, causal=True, queries=places)
        for core in (fused, xla)
    )
    assert_same(found, expected)


@pytest.mark.parametrize("core", [fused, xla])
def test_a_vector_shared_by_all_keys_costs_no_precision(core: Any) -> None:
    """The shared vector has five standard deviations in keys and one in values."""
    rng = np.random.default_rng(1)
    q, k, v, weights = rng.standard_normal((4, 1, 128, 2, 64))
    k, v = (x + by * rng.standard_normal((1, 1, 2, 64)) for x, by in ((k, 5), (v, 1)))
    narrow = [jnp.asarray(x, jnp.bfloat16) for x in (q, k, v)]

    def of_queries(core: Any, q: Any, k: Any, v: Any) -> Any:
        def value(q: Any) -> Any:
            bias, segments = jnp.zeros((3, 2, 64)), jnp.ones((1, 128), jnp.int32)
            out = core(q, k, v, bias, segments, rate=0.1)
            return (out.astype(jnp.float32) * weights.astype(np.float32)).sum()

        return jax.jit(jax.grad(value))(q)

    expected = of_queries(xla, *(x.astype(jnp.float32) for x in narrow))
    assert relative_error(of_queries(core, *narrow), expected) < 6e-3


@pytest.mark.parametrize(
    ("rows", "length", "heads", "columns", "queries"),
    [
        (2, 256, 2, 64, 20),
        (1, 1000, 1, 32, 300),  # three tiles of queries in the backward kernel
        (2, 128, 1, 32, 128),  # as many queries as tokens, in random order
    ],
)
def test_selected_queries_equal_the_full_result(
    rows: int, length: int, heads: int, columns: int, queries: int
) -> None:
    rng = np.random.default_rng(5)
    places = jnp.asarray(rng.integers(0, length, (rows, queries)), jnp.int32)
    q, k, v = jnp.asarray(rng.standard_normal((3, rows, length, heads, columns)), jnp.float32)
    weights = jnp.asarray(rng.standard_normal((rows, queries, heads, columns)), jnp.float32)
    at = (jnp.arange(rows)[:, None], places)
    (of_q, *of_others), out = attend(xla, q, k, v, jnp.zeros_like(q).at[at].add(weights), rate=0.1)
    for core in (xla, fused):
        (found, *others), read = attend(core, q[at], k, v, weights, rate=0.1, queries=places)
        # The gradient of a position is the sum over all queries at that position.
        assert_same(jnp.zeros_like(q).at[at].add(found), of_q)
        assert_same((read, *others), (out[at], *of_others))


def test_bfloat16_error_is_no_larger_than_xlas() -> None:
    drawn = np.random.default_rng(1).standard_normal((4, 1, 128, 2, 64))
    wide, narrow = ([jnp.asarray(x, dtype) for x in drawn] for dtype in (jnp.float32, jnp.bfloat16))
    expected = jax.tree.leaves(attend(xla, *wide, rate=0.1))
    errors = [
        [
            relative_error(one.astype(jnp.float32), other)
            for one, other in zip(
                jax.tree.leaves(attend(core, *narrow, rate=0.1)), expected, strict=True
            )
        ]
        for core in (fused, xla)
    ]
    assert max(errors[0]) < 1.5 * max(errors[1]) < 0.03


def test_a_mesh_splits_rows_and_heads() -> None:
    """A block has two of the six heads on one device, and all three heads on a mesh."""
    drawn = np.random.default_rng(2).standard_normal((4, 4, 128, 6, 64))
    arrays = [jnp.asarray(x, jnp.float32) for x in drawn]
    expected = attend(xla, *arrays, rate=0.2)
    with jax.set_mesh(make_mesh(MeshSection(data=2, fsdp=2, tensor=2))):
        assert_same(attend(fused, *arrays, rate=0.2), expected)


def test_narrow_heads_equal_xlas_on_two_tensor_devices() -> None:
    """A device has two heads of 16 columns, whose lanes are too few for encoded segments."""
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 64}
    assert_a_models_cores_are_equal(**sizes)


CASES = {
    "heads": st.one_of(st.integers(1, 4), st.integers(1, 16)),  # of a device
    "columns": st.integers(1, 128),
    "rows": st.sampled_from([1, 1, 2]),
    "length": st.one_of(st.integers(1, 160), st.integers(1, 700)),
    "documents": st.integers(1, 40),
    "padding": st.integers(0, 30),
    "queries": st.sampled_from(["all", "some", "permuted", "repeated"]),
    "causal": st.booleans(),
    "rate": st.sampled_from([0.0, 0.1, 0.5]),
    "parts": st.sampled_from(PARTS),
    "dtype": st.sampled_from(["float32", "bfloat16"]),
}


def check(
    *,
    heads: int,
    columns: int,
    rows: int,
    length: int,
    documents: int,
    padding: int,
    queries: str,
    causal: bool,
    rate: float,
    parts: int,
    dtype: str,
) -> Outcome:
    """Compares a shape in float32. `dtype` only selects the limit."""
    heads *= parts
    architecture = small_architecture(hidden_size=heads * columns, num_attention_heads=heads)
    if refused("attention", architecture, dtype=dtype, length=length, parts=parts):
        return "refused"
    rng = np.random.default_rng(length)
    segments = 1 + np.sort(rng.integers(0, documents, (rows, length)), axis=1)
    segments[0, max(length - padding, 1) :] = 0
    order = np.argsort(rng.random((rows, length)), axis=1)
    count = -(-length // 3) if queries == "some" else length
    chosen = rng.integers(0, length, (rows, length)) if queries == "repeated" else order[:, :count]
    k, v = rng.standard_normal((2, rows, length, heads, columns)).astype(np.float32)
    q, weights = rng.standard_normal((2, rows, count, heads, columns)).astype(np.float32)
    settings: Any = {"rate": rate, "causal": causal, "segments": segments.astype(np.int32)}
    settings["queries"] = None if queries == "all" else chosen.astype(np.int32)
    with jax.set_mesh(tensor_mesh(parts)):
        assert_near(*(attend(each, q, k, v, weights, **settings) for each in (fused, xla)))
    return "equal"


@shapes(4)
def test_every_shape_equals_xla_or_is_refused(shapes: int) -> None:
    search(check, CASES, shapes=shapes)
