"""Compares the kernel of `gelu_project`, interpreted, with plain JAX.

test_alone_compile.py compiles it for TPUs.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.elementwise import gelu_tanh
from bert_jax.model.gelu_project import gelu_project
from bert_jax.model.layers import ParamUse, project
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from tests.model.parts import fresh_params, model_of
from tests.support import loss_of, relative_error, small_batch, small_task

USE = ParamUse(("mlp", "hidden"), "float32")


def fused(y: Any, bias: Any, kernel: Any) -> Any:
    return gelu_project(y, bias, kernel, use=USE)


def xla(y: Any, bias: Any, kernel: Any) -> Any:
    return project(gelu_tanh(y + bias.astype(y.dtype)), kernel, use=USE)


@functools.partial(jax.jit, static_argnums=0)
def fed(core: Any, y: Any, bias: Any, kernel: Any, weights: Any) -> Any:
    """Returns the gradients of the weighted sum of the output, then the output."""

    def value(*arrays: Any) -> tuple[Any, Any]:
        out = core(*arrays)
        return (out * weights).astype(jnp.float32).sum(), out

    return jax.grad(value, (0, 1, 2), has_aux=True)(y, bias, kernel)


def drawn(sizes: tuple[int, int], width: int, inner: int, dtype: Any = jnp.float32) -> list[Any]:
    rng = np.random.default_rng(0)
    y, weights = (rng.standard_normal((*sizes, count)) for count in (inner, width))
    vectors = rng.standard_normal(inner), rng.standard_normal((inner, width)) / np.sqrt(inner)
    bias, kernel = (jnp.asarray(x, jnp.float32) for x in vectors)
    return [jnp.asarray(y, dtype), bias, kernel, jnp.asarray(weights, dtype)]


def assert_same(found: Any, expected: Any) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert relative_error(one, other) < 2e-6


@pytest.mark.parametrize(
    ("sizes", "width", "inner"),
    [((2, 128), 128, 512), ((3, 77), 256, 384), ((1, 5), 128, 128), ((5, 250), 128, 1024)],
)
def test_it_equals_xla(sizes: tuple[int, int], width: int, inner: int) -> None:
    arrays = drawn(sizes, width, inner)
    assert_same(fed(fused, *arrays), fed(xla, *arrays))


def test_bfloat16_error_is_no_larger_than_xlas() -> None:
    wide, narrow = (drawn((2, 128), 256, 512, dtype) for dtype in (jnp.float32, jnp.bfloat16))
    expected = jax.tree.leaves(fed(xla, *wide))
    errors = [
        [
            relative_error(one.astype(jnp.float32), other)
            for one, other in zip(jax.tree.leaves(fed(core, *narrow)), expected, strict=True)
        ]
        for core in (fused, xla)
    ]
    assert max(errors[0]) < 1.5 * max(errors[1]) < 0.03


def test_a_mesh_splits_rows_and_columns() -> None:
    arrays = drawn((8, 16), 128, 512)
    expected = fed(xla, *arrays)
    for section in (MeshSection(data=8), MeshSection(data=2, fsdp=2, tensor=2)):
        with jax.set_mesh(make_mesh(section)):
            assert_same(fed(fused, *arrays), expected)


@pytest.mark.parametrize(
    ("part", "remat"), [("norm", "none"), ("ffn", "none"), ("ffn", "dots"), ("ffn", "full")]
)
def test_a_models_loss_and_gradients_equal_xlas(part: str, remat: str) -> None:
    batch = {name: jnp.asarray(array) for name, array in small_batch(rows=2).items()}
    sizes: dict[str, Any] = {"hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
    params = fresh_params(small_task(**sizes))

    def loss_and_gradients(**execution: str) -> Any:
        task = small_task(execution=execution, **sizes)

        def loss(params: Any) -> Any:
            model = model_of(task, params)
            return loss_of(task, model, batch, dropout_key=jax.random.key(3))[0]

        program = str(jax.make_jaxpr(jax.grad(loss))(params))
        kernel = {"norm": "norm_backward", "ffn": "gelu_product"}[part]
        assert (kernel in program) is (execution[part] == "fused")
        return jax.jit(jax.value_and_grad(loss))(params)

    found, gradients = loss_and_gradients(**{part: "fused", "remat": remat})
    expected, expected_gradients = loss_and_gradients(**{part: "xla"})
    assert float(found) == pytest.approx(float(expected), rel=1e-6)
    for each in (gradients, expected_gradients):
        each["encoder"]["layers"]["attention"]["key"].pop("bias")  # zero except for rounding
    pairs = zip(jax.tree.leaves(gradients), jax.tree.leaves(expected_gradients), strict=True)
    assert max(relative_error(*pair) for pair in pairs) < 1e-5
