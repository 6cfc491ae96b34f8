"""`fused` attention against `xla`, interpreted; test_kernel_compile.py compiles it for TPUs."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.model.attention import IMPLEMENTATIONS
from bert_jax.model.config import Execution
from bert_jax.model.execution import resolve_execution
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from tests.support import relative_error, small_architecture


def segments_of(rows: int, length: int) -> jax.Array:
    """Packed rows: two or three examples each, then padding, the last row of padding alone."""
    ids = np.zeros((rows, length), np.int32)
    for row in range(rows - 1):
        cuts = [0, length // 3, length // 2 + row, length - 5 * row - 1]
        for number, (start, stop) in enumerate(itertools.pairwise(cuts), 1):
            ids[row, start:stop] = number
    return jnp.asarray(ids)


@functools.partial(jax.jit, static_argnames=("name", "rate"))
def attend(name: Any, q: Any, k: Any, v: Any, weights: Any, *, rate: float) -> Any:
    """The output, and the gradients of its weighted sum."""
    segments = segments_of(*q.shape[:2])

    def value(q: Any, k: Any, v: Any) -> tuple[Any, Any]:
        out = IMPLEMENTATIONS[name](
            q, k, v, segments, dropout_rate=rate, dropout_key=jax.random.key(3)
        )
        return (out * weights).astype(jnp.float32).sum(), out

    return jax.grad(value, (0, 1, 2), has_aux=True)(q, k, v)


@pytest.mark.parametrize(
    ("length", "heads", "columns", "rate"),
    [
        (128, 2, 64, 0.0),
        (128, 3, 64, 0.3),  # an odd number of heads: one block of all
        (40, 4, 32, 0.1),  # not a multiple of what a register holds
        (128, 1, 128, 0.1),
        pytest.param(512, 2, 64, 0.1, marks=pytest.mark.chaos),
    ],
)
def test_it_gives_what_xla_gives(length: int, heads: int, columns: int, rate: float) -> None:
    """Dropout on: the very same elements are dropped, forward and backward."""
    drawn = np.random.default_rng(0).standard_normal((4, 3, length, heads, columns))
    arrays = [jnp.asarray(x, jnp.float32) for x in drawn]
    found, expected = (attend(name, *arrays, rate=rate) for name in ("fused", "xla"))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert relative_error(one, other) < 2e-5


def test_in_bfloat16_it_is_as_close_to_float32_as_xla_is() -> None:
    drawn = np.random.default_rng(1).standard_normal((4, 2, 128, 2, 64))
    wide, narrow = ([jnp.asarray(x, dtype) for x in drawn] for dtype in (jnp.float32, jnp.bfloat16))
    expected = jax.tree.leaves(attend("xla", *wide, rate=0.1))
    errors = [
        [
            relative_error(one.astype(jnp.float32), other)
            for one, other in zip(
                jax.tree.leaves(attend(name, *narrow, rate=0.1)), expected, strict=True
            )
        ]
        for name in ("fused", "xla")
    ]
    assert max(errors[0]) < 1.5 * max(errors[1]) < 0.03


def test_on_a_mesh_every_device_runs_its_own_rows_and_heads() -> None:
    drawn = np.random.default_rng(2).standard_normal((4, 4, 128, 4, 64))
    arrays = [jnp.asarray(x, jnp.float32) for x in drawn]
    expected = attend("xla", *arrays, rate=0.2)
    with jax.set_mesh(make_mesh(MeshSection(data=2, fsdp=2, tensor=2))):
        found = attend("fused", *arrays, rate=0.2)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert relative_error(one, other) < 2e-5


def test_auto_is_xla_without_a_tpu_and_a_length_too_great_is_refused() -> None:
    resolve = functools.partial(
        resolve_execution, architecture=small_architecture(), mesh=make_mesh(MeshSection())
    )
    assert resolve(Execution(), longest=512).attention == "xla"
    assert resolve(Execution(attention="fused"), longest=512).attention == "fused"
    with pytest.raises(UserError, match="found fused with rows of 1024 tokens, allowed: up to 512"):
        resolve(Execution(attention="fused"), longest=1024)
