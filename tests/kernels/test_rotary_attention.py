"""The kernel of rotary attention, interpreted, against plain JAX: values and gradients."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from bert_jax.kernels.rotary_attention import rotary_attention
from bert_jax.model.rotary import rotated, rotations
from tests.kernels.search import (
    PARTS,
    Outcome,
    assert_near,
    mostly,
    refused,
    search,
    shapes,
    tensor_mesh,
)
from tests.support import small_encoder

pytestmark = pytest.mark.slow

Array = jax.Array
Triple = tuple[Array, Array, Array]


def plain(
    qkv: Triple,
    segments: Array,
    turn: tuple[Array, Array],
    *,
    columns: int,
    window: int | None,
    causal: bool,
) -> Array:
    """Attention whose every score is in memory."""
    q, k, v = (x.reshape(*x.shape[:2], -1, columns) for x in qkv)
    q, k = rotated(q, turn), rotated(k, turn)
    visible = abs(segments)[:, :, None] == segments[:, None, :]
    places = np.arange(q.shape[1])
    if window is not None:
        visible &= abs(places[:, None] - places) <= window // 2
    if causal:
        visible &= places[:, None] >= places
    scores = jnp.einsum("bqhk,blhk->bhql", q, k) * columns**-0.5
    weights = jax.nn.softmax(jnp.where(visible[:, None], scores, -1e9), axis=-1)
    return jnp.einsum("bhql,blhk->bqhk", weights, v).reshape(qkv[0].shape)


@pytest.mark.parametrize(
    ("length", "heads", "columns", "window", "causal"),
    [
        (128, 2, 64, 64, False),
        (300, 4, 64, 128, False),
        (640, 2, 64, 256, False),  # the widest window
        (256, 1, 128, 64, False),
        (512, 2, 64, None, False),
        (1536, 2, 64, 128, False),  # two blocks of queries
        (300, 2, 64, 128, True),  # three tiles
        (384, 2, 64, None, True),  # three tiles, which read one to three chunks of keys
        pytest.param(200, 4, 32, 32, False, marks=pytest.mark.chaos),
        # Two chunks of keys.
        pytest.param(1536, 2, 64, None, False, marks=pytest.mark.chaos),
        pytest.param(1536, 2, 64, 128, True, marks=pytest.mark.chaos),
        pytest.param(2304, 2, 64, None, True, marks=pytest.mark.chaos),
    ],
)
def test_the_kernel_equals_plain_attention(
    length: int, heads: int, columns: int, window: int | None, causal: bool
) -> None:
    rng = np.random.default_rng(length)
    shape = 2, length, heads * columns
    q, k, v, gradient = (jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(4))
    segments = np.sort(rng.integers(0, 4, shape[:2]))[:, ::-1].astype(np.int32)
    segments[0, (segments[0] == 1).argmax() + 3] = -1  # no token attends to this one
    segments = jnp.asarray(segments)
    turn = rotations(length, columns=columns, theta=1e4)

    settings: Any = {"columns": columns, "window": window, "causal": causal}
    found, back = jax.vjp(lambda qkv: rotary_attention(qkv, segments, turn, **settings), (q, k, v))
    wanted, plain_back = jax.vjp(lambda qkv: plain(qkv, segments, turn, **settings), (q, k, v))
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    for ours, theirs in zip(back(gradient)[0], plain_back(gradient)[0], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * float(abs(theirs).max()))


CASES = {
    "heads": st.integers(1, 4),  # of a device
    "columns": mostly(st.sampled_from([64, 128]), st.integers(1, 64).map(lambda n: 2 * n)),
    "rows": st.integers(1, 2),
    "length": st.one_of(st.integers(1, 160), st.integers(1, 700)),
    "documents": st.integers(1, 40),
    "padding": st.integers(0, 30),
    "window": mostly(st.integers(1, 8).map(lambda n: 32 * n), st.integers(1, 150)),
    "is_global": st.booleans(),
    "causal": st.booleans(),
    "parts": st.sampled_from(PARTS),
}


def check(
    *,
    heads: int,
    columns: int,
    rows: int,
    length: int,
    documents: int,
    padding: int,
    window: int,
    is_global: bool,
    causal: bool,
    parts: int,
) -> Outcome:
    """Compares a shape in float32. The limit is the one of bfloat16."""
    window += window % 2
    heads *= parts
    sizes = {"hidden_size": heads * columns, "num_attention_heads": heads, "window": window}
    architecture = small_encoder("modernbert", **sizes)
    if refused("attention", architecture, length=length, parts=parts):
        return "refused"
    rng = np.random.default_rng(length)
    segments = 1 + np.sort(rng.integers(0, documents, (rows, length)), axis=1)
    segments[0, max(length - padding, 1) :] = 0
    shape = 4, rows, length, heads * columns
    q, k, v, gradient = rng.standard_normal(shape).astype(np.float32)
    turn = rotations(length, columns=columns, theta=1e4)

    @functools.partial(jax.jit, static_argnums=0)
    def run(core: Any, qkv: Triple) -> Any:
        settings = {"columns": columns, "window": None if is_global else window, "causal": causal}
        ids = jnp.asarray(segments, jnp.int32)
        out, back = jax.vjp(lambda qkv: core(qkv, ids, turn, **settings), qkv)
        return out, back(gradient)

    with jax.set_mesh(tensor_mesh(parts)):
        assert_near(*(run(core, (q, k, v)) for core in (rotary_attention, plain)))
    return "equal"


@shapes(4)
def test_every_shape_equals_plain_attention_or_is_refused(shapes: int) -> None:
    search(check, CASES, shapes=shapes)
