"""Attention by distance in the fused kernel, interpreted, against plain JAX: values and gradients.

test_alone_compile.py compiles the kernels for TPUs.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from bert_jax.encoders.deberta.relative_attention import RelativeTable, relative_attention
from bert_jax.encoders.deberta.section import DebertaArchitecture
from bert_jax.kernels.attention import dropout_words, fused_attention
from bert_jax.kernels.distances import Distances, by_distance
from bert_jax.kernels.random_bits import tile_seeds
from tests.kernels.search import (
    PARTS,
    Outcome,
    assert_a_models_cores_are_equal,
    assert_near,
    mostly,
    refused,
    search,
    shapes,
    tensor_mesh,
)
from tests.support import relative_error, small_encoder

pytestmark = pytest.mark.slow


def architecture_of(*, heads: int, columns: int, **changes: Any) -> DebertaArchitecture:
    """Returns sizes with buckets that many distances share."""
    sizes = {"hidden_size": heads * columns, "num_attention_heads": heads}
    sizes |= {"max_position_embeddings": 1100, "position_buckets": 64}
    found = small_encoder("deberta", **sizes | changes)
    assert isinstance(found, DebertaArchitecture)
    return found


def fused(
    arrays: Any, table: RelativeTable, segments: Any, *, rows: Any, rate: float, causal: bool
) -> Any:
    """Calls the kernel as `DisentangledAttention` does."""
    batch, length, heads, columns = arrays[0].shape
    tables = (
        None if each is None else by_distance(each.reshape(len(each), -1), rows, length=length)
        for each in table
    )
    words = dropout_words(tile_seeds(jax.random.key(3), (batch, heads)), length=length)
    out = fused_attention(
        tuple(each.reshape(batch, length, -1) for each in arrays),
        jnp.zeros((3, heads * columns)),
        segments,
        words,
        columns=columns,
        rate=rate,
        causal=causal,
        distances=Distances(*tables),
    )
    return out.reshape(arrays[0].shape)


def plain(
    arrays: Any, table: RelativeTable, segments: Any, *, rows: Any, rate: float, causal: bool
) -> Any:
    key = jax.random.key(3)
    options: Any = {"dropout_rate": rate, "dropout_key": key, "causal": causal}
    return relative_attention(*arrays, segments, table, rows=rows, **options)


def attend(
    core: Any,
    architecture: DebertaArchitecture,
    *,
    rows: int,
    length: int,
    rate: float,
    documents: int = 3,
    causal: bool = False,
    dtype: Any = jnp.float32,
) -> Any:
    """Returns the attended values, and the gradients of queries, keys, values and tables."""
    rng = np.random.default_rng(length)
    heads, columns = architecture.num_attention_heads, architecture.head_dim
    segments = np.sort(rng.integers(1, 1 + documents, (rows, length)), axis=1)
    segments[0, max(length - 5, 1) :] = 0
    drawn = rng.standard_normal((4, rows, length, heads, columns))
    *qkv, gradient = (jnp.asarray(x, dtype) for x in drawn)
    drawn = rng.standard_normal((2, 2 * architecture.span, heads, columns))
    terms = architecture.pos_att_type
    table = RelativeTable(
        *(
            jnp.asarray(x, dtype) if term in terms else None
            for x, term in zip(drawn, ("c2p", "p2c"), strict=True)
        )
    )

    @jax.jit
    def run(arrays: Any, table: RelativeTable) -> Any:
        options: Any = {"rows": architecture.relative_rows, "rate": rate, "causal": causal}
        ids = jnp.asarray(segments, jnp.int32)
        out, back = jax.vjp(lambda *x: core(*x, ids, **options), arrays, table)
        return out, back(gradient)

    return run(qkv, table)


@pytest.mark.parametrize(
    ("terms", "length", "causal"),
    [
        (("c2p",), 128, False),
        (("p2c",), 130, False),
        (("c2p", "p2c"), 300, True),  # three tiles, which read different numbers of keys
        pytest.param(("c2p", "p2c"), 1000, False, marks=pytest.mark.chaos),  # several tiles
    ],
)
def test_it_equals_plain_attention(terms: tuple[str, ...], length: int, causal: bool) -> None:
    architecture = architecture_of(heads=2, columns=64, pos_att_type=terms)
    found, expected = (
        attend(core, architecture, rows=2, length=length, rate=0.1, causal=causal)
        for core in (fused, plain)
    )
    assert_near(found, expected)


def test_bfloat16_error_is_about_plain_attentions() -> None:
    """The kernel rounds the products with distances, and plain attention the gradients."""
    architecture = architecture_of(heads=2, columns=64)
    run = functools.partial(attend, architecture=architecture, rows=1, length=128, rate=0.1)
    expected = jax.tree.leaves(run(plain))
    errors = [
        max(
            relative_error(one.astype(jnp.float32), other)
            for one, other in zip(
                jax.tree.leaves(run(core, dtype=jnp.bfloat16)), expected, strict=True
            )
        )
        for core in (fused, plain)
    ]
    assert errors[0] < 1.5 * errors[1] < 0.05


@pytest.mark.parametrize("sizes", [{}, {"num_hidden_layers": 1, "enhanced_mask_decoder": True}])
def test_a_packed_batch_equals_xlas_on_two_tensor_devices(sizes: dict[str, Any]) -> None:
    """The last layer computes only masked tokens, and a mask decoder computes them twice."""
    assert_a_models_cores_are_equal(kind="deberta", **sizes)


CASES = {
    "heads": st.integers(1, 4),  # of a device
    "columns": mostly(st.sampled_from([64, 128]), st.integers(1, 128)),
    "rows": st.integers(1, 2),
    "length": st.one_of(st.integers(1, 160), st.integers(1, 520)),
    "documents": st.integers(1, 40),
    "terms": st.sampled_from([("c2p",), ("p2c",), ("c2p", "p2c"), ()]),
    "buckets": st.integers(4, 80),
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
    terms: tuple[str, ...],
    buckets: int,
    causal: bool,
    rate: float,
    parts: int,
    dtype: str,
) -> Outcome:
    """Compares a shape in float32. `dtype` only selects the limit."""
    architecture = architecture_of(
        heads=heads * parts, columns=columns, position_buckets=buckets, pos_att_type=terms
    )
    if refused("attention", architecture, dtype=dtype, length=length, parts=parts):
        return "refused"
    sizes: Any = {"rows": rows, "length": length, "documents": documents}
    with jax.set_mesh(tensor_mesh(parts)):
        found, expected = (
            attend(core, architecture, **sizes, rate=rate, causal=causal) for core in (fused, plain)
        )
        assert_near(found, expected)
    return "equal"


@shapes(3)
def test_every_shape_equals_plain_attention_or_is_refused(shapes: int) -> None:
    search(check, CASES, shapes=shapes)
