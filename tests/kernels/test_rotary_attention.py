"""The kernel of rotary attention, interpreted, against plain JAX: values and gradients."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.encoders.modernbert.rotary import rotated, rotations
from bert_jax.kernels.rotary_attention import rotary_attention

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
    visible = segments[:, :, None] == segments[:, None, :]
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
    segments = jnp.asarray(np.sort(rng.integers(0, 4, shape[:2]))[:, ::-1].copy(), jnp.int32)
    turn = rotations(length, columns=columns, theta=1e4)

    settings: Any = {"columns": columns, "window": window, "causal": causal}
    found, back = jax.vjp(lambda qkv: rotary_attention(qkv, segments, turn, **settings), (q, k, v))
    wanted, plain_back = jax.vjp(lambda qkv: plain(qkv, segments, turn, **settings), (q, k, v))
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    for ours, theirs in zip(back(gradient)[0], plain_back(gradient)[0], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * float(abs(theirs).max()))
