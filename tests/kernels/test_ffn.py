"""Compares the kernels of `gelu_project` and `gated_project`, interpreted, with plain JAX.

test_alone_compile.py compiles it for TPUs.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import strategies as st
from scipy.special import ndtr

from bert_jax.encoders.build import encoder_builder
from bert_jax.kernels import gelu_product as gelu_kernel
from bert_jax.kernels.pallas_call import vector_dtype
from bert_jax.model.architecture import Activation
from bert_jax.model.elementwise import gelu_erf, gelu_erf_and_slope, gelu_erf_slope, gelu_slope
from bert_jax.model.gated_project import gated_project
from bert_jax.model.gelu_project import GELUS, gelu_project
from bert_jax.model.layers import ACTIVATIONS, ParamUse, project
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.train.state import define_model
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
from tests.model.parts import fresh_params, model_of
from tests.support import loss_of, relative_error, small_batch, small_encoder, small_task

pytestmark = pytest.mark.slow

USE = ParamUse(("mlp", "hidden"), "float32")


class Half(NamedTuple):
    """The second half of an FFN: activation and product."""

    fused: Callable[..., Any]
    xla: Callable[..., Any]
    has_bias: bool  # the second input is then a vector


def gelu(y: Any, bias: Any, kernel: Any, *, name: Activation) -> Any:
    return project(ACTIVATIONS[name](y + bias.astype(y.dtype)), kernel, use=USE)


def gelu_half(name: Activation) -> Half:
    fused = functools.partial(gelu_project, gelu=GELUS[name], use=USE)
    return Half(fused, functools.partial(gelu, name=name), has_bias=True)


def gated(gate: Any, up: Any, kernel: Any, *, name: Activation) -> Any:
    return project(ACTIVATIONS[name](gate) * up, kernel, use=USE)


def gated_half(name: Activation) -> Half:
    fused = functools.partial(gated_project, activation=name, use=USE)
    return Half(fused, functools.partial(gated, name=name), has_bias=False)


GELU, GELU_ERF = gelu_half("gelu_tanh"), gelu_half("gelu_erf")
GEGLU, SWIGLU = gated_half("gelu_erf"), gated_half("silu")
HALVES = {"gelu_tanh": GELU, "gelu_erf": GELU_ERF, "geglu": GEGLU, "swiglu": SWIGLU}
every = pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)


@functools.partial(jax.jit, static_argnums=0)
def fed(core: Any, first: Any, second: Any, kernel: Any, weights: Any) -> Any:
    """Returns the gradients of the weighted sum of the output, then the output."""

    def value(*arrays: Any) -> tuple[Any, Any]:
        out = core(*arrays)
        return (out * weights).astype(jnp.float32).sum(), out

    return jax.grad(value, (0, 1, 2), has_aux=True)(first, second, kernel)


def drawn(
    half: Half, sizes: tuple[int, int], width: int, inner: int, dtype: Any = jnp.float32
) -> list[Any]:
    """Returns the two inputs of the activation, the matrix, and weights of the output."""
    rng = np.random.default_rng(0)
    first, second = (rng.standard_normal((*sizes, inner)) for _ in range(2))
    kernel = jnp.asarray(rng.standard_normal((inner, width)) / np.sqrt(inner), jnp.float32)
    second = second[0, 0].astype(np.float32) if half.has_bias else second.astype(dtype)
    weights = jnp.asarray(rng.standard_normal((*sizes, width)), dtype)
    return [jnp.asarray(first, dtype), jnp.asarray(second), kernel, weights]


def assert_same(found: Any, expected: Any) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert relative_error(one, other) < 2e-6


def test_gelu_and_its_slope_equal_the_exact_ones() -> None:
    x = np.concatenate([np.linspace(-12, 12, 200_001), [0, 1e5, -1e5, 1e30, -1e30]])
    x = x.astype(np.float32).astype(np.float64)
    value, slope = map(np.asarray, jax.jit(gelu_erf_and_slope)(x.astype(np.float32)))
    density = np.exp(-0.5 * np.minimum(x * x, 1e4)) / np.sqrt(2 * np.pi)
    assert (abs(value - x * ndtr(x)) / (1 + abs(x))).max() < 2e-7
    assert abs(slope - (ndtr(x) + x * density)).max() < 3e-7
    np.testing.assert_array_equal(jax.jit(gelu_erf)(x.astype(np.float32)), value)
    narrow = jnp.asarray(np.linspace(-12, 12, 200_001), jnp.bfloat16)
    x = np.asarray(narrow, np.float64)
    assert abs(np.asarray(jax.jit(gelu_erf)(narrow)) - x * ndtr(x)).max() < 6e-6


@pytest.mark.parametrize(("name", "most"), [("gelu_tanh", 0.01), ("gelu_erf", 0.006)])
def test_slopes_in_bfloat16_are_near_the_exact_ones(name: Activation, most: float) -> None:
    slope = {"gelu_tanh": gelu_slope, "gelu_erf": gelu_erf_slope}[name]
    x = jnp.asarray(np.random.default_rng(0).standard_normal(2**17), jnp.bfloat16)
    expected = np.asarray(slope(x.astype(jnp.float32)))
    error = np.asarray(slope(x)) - expected  # without `jit`, each operation rounds to bfloat16
    assert 1e-3 < abs(error).max() < most
    assert np.sqrt((error**2).mean() / (expected**2).mean()) < 2.3e-3
    assert abs(error.mean()) < 3e-5  # no bias
    wide = jax.vmap(jax.grad(ACTIVATIONS[name]))(x.astype(jnp.float32))
    np.testing.assert_allclose(expected, wide, atol=1e-6)


def test_slopes_are_in_bfloat16_where_vector_units_compute_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for kind, dtype in {"TPU v5 lite": jnp.float32, "TPU v6 lite": jnp.bfloat16}.items():
        device = jax.sharding.AbstractDevice(device_kind=kind, num_cores=1, platform="tpu")
        mesh = jax.sharding.AbstractMesh((1,), ("data",), abstract_device=device)
        with jax.sharding.use_abstract_mesh(mesh):
            assert vector_dtype(jnp.bfloat16) == dtype
            assert vector_dtype(jnp.float32) == jnp.float32
    monkeypatch.setattr(gelu_kernel, "vector_dtype", lambda dtype: dtype)
    for name in GELUS:
        half = gelu_half(name)
        narrow = drawn(half, (2, 128), 256, 512, jnp.bfloat16)
        program = str(jax.make_jaxpr(fed, static_argnums=0)(half.fused, *narrow))
        assert "bf16[256,256] = tanh" in program
        assert_no_larger_error(half)


@pytest.mark.parametrize(
    ("half", "sizes", "width", "inner"),
    [
        (GELU, (2, 128), 128, 512),
        (GELU, (3, 77), 256, 384),
        (GELU, (1, 5), 128, 128),
        (GELU_ERF, (3, 77), 256, 384),
        (GELU, (5, 250), 128, 1024),
        (GEGLU, (2, 128), 128, 384),
        (GEGLU, (3, 77), 256, 200),  # the last block is partly outside the matrix
        (SWIGLU, (1, 5), 128, 640),
        (GEGLU, (5, 250), 128, 128),  # several blocks of rows, and padding
    ],
)
def test_it_equals_xla(half: Half, sizes: tuple[int, int], width: int, inner: int) -> None:
    arrays = drawn(half, sizes, width, inner)
    assert_same(fed(half.fused, *arrays), fed(half.xla, *arrays))


def assert_no_larger_error(half: Half) -> None:
    wide, narrow = (drawn(half, (2, 128), 256, 512, dtype) for dtype in (jnp.float32, jnp.bfloat16))
    expected = jax.tree.leaves(fed(half.xla, *wide))
    errors = [
        [
            relative_error(one.astype(jnp.float32), other)
            for one, other in zip(jax.tree.leaves(fed(core, *narrow)), expected, strict=True)
        ]
        for core in (half.fused, half.xla)
    ]
    assert max(errors[0]) < 1.5 * max(errors[1]) < 0.03


@every
def test_bfloat16_error_is_no_larger_than_xlas(half: Half) -> None:
    assert_no_larger_error(half)


@every
def test_a_mesh_splits_rows_and_columns(half: Half) -> None:
    arrays = drawn(half, (8, 16), 128, 512)
    expected = fed(half.xla, *arrays)
    for section in (MeshSection(data=8), MeshSection(data=2, fsdp=2, tensor=2)):
        with jax.set_mesh(make_mesh(section)):
            assert_same(fed(half.fused, *arrays), expected)


@pytest.mark.parametrize(
    ("kind", "remat"),
    [
        pytest.param("modernbert", "none", marks=pytest.mark.chaos),
        ("modernbert", "full"),
        ("eurobert", "none"),
    ],
)
def test_pre_norm_layers_loss_and_gradients_equal_xlas(kind: str, remat: str) -> None:
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 192}
    # One head of keys and values for both heads of queries.
    own = {"window": 8} if kind == "modernbert" else {"num_key_value_heads": 1}
    architecture = small_encoder(kind, vocab_size=256, **sizes, **own)
    rng = np.random.default_rng(1)
    batch = {
        "input_ids": jnp.asarray(rng.integers(0, 256, (2, 24))),
        "segment_ids": jnp.ones((2, 24), jnp.int32),
    }
    queries, labels = jnp.asarray([[3, 7, 0], [1, 20, 9]]), jnp.asarray([[5, 6, 7], [8, 9, 10]])
    heads = HeadsSection(pooler=False, next_sentence=False)

    def loss_and_gradients(**changes: Any) -> Any:
        build = encoder_builder(architecture, Execution(dtype="float32", **changes), heads)
        definition = define_model(build)

        def loss(params: Any) -> Any:
            model = nnx.merge(definition.graphdef, params)
            hidden = model.hidden(batch, queries_BQ=queries, dropout_key=None)
            logits = model.mlm_logits(hidden)
            picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)
            return -picked.sum()

        keys = iter(jax.random.split(jax.random.key(0), 64))
        params = jax.tree.map(
            lambda x: 1.0 * (x.ndim == 1) + 0.1 * jax.random.normal(next(keys), x.shape),
            definition.params,
        )
        program = str(jax.make_jaxpr(jax.grad(loss))(params))
        for part, kernel in (("norm", "norm_backward"), ("ffn", "geglu_gradients")):
            assert (kernel in program) is (changes[part] == "fused")
        return jax.jit(jax.value_and_grad(loss))(params)

    attention = "fused" if kind == "eurobert" else "xla"
    found, gradients = loss_and_gradients(
        norm="fused", ffn="fused", attention=attention, remat=remat
    )
    expected, expected_gradients = loss_and_gradients(norm="xla", ffn="xla")
    assert float(found) == pytest.approx(float(expected), rel=1e-6)
    pairs = zip(jax.tree.leaves(gradients), jax.tree.leaves(expected_gradients), strict=True)
    assert max(relative_error(*pair) for pair in pairs) < 1e-5


@pytest.mark.parametrize(
    ("part", "remat"),
    [
        ("norm", "none"),
        *(pytest.param("ffn", remat, marks=pytest.mark.chaos) for remat in ("none", "dots")),
        ("ffn", "full"),
    ],
)
def test_berts_loss_and_gradients_equal_xlas(part: str, remat: str) -> None:
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


REGISTERS = st.integers(1, 6).map(lambda n: 128 * n)
CASES = {
    "name": st.sampled_from(sorted(HALVES)),
    "rows": st.integers(1, 5),
    "length": st.integers(1, 300),
    "width": mostly(REGISTERS, st.integers(1, 800)),
    "inner": mostly(REGISTERS, st.integers(1, 800)),  # of a device
    "parts": st.sampled_from(PARTS),
}


def check(*, name: str, rows: int, length: int, width: int, inner: int, parts: int) -> Outcome:
    """Compares a shape in float32. The limit is the one of bfloat16."""
    gates = {"geglu": "gelu_erf", "swiglu": "silu"}
    kind, act = ("modernbert" if name in gates else "bert"), gates.get(name, name)
    sizes = {"hidden_size": 2 * width if kind == "modernbert" else width, "hidden_act": act}
    sizes |= {"num_attention_heads": 1, "intermediate_size": inner * parts}
    architecture = small_encoder(kind, **sizes)
    if refused("ffn", architecture, parts=parts):
        return "refused"
    half = HALVES[name]
    arrays = drawn(half, (rows, length), architecture.hidden_size, inner * parts)
    with jax.set_mesh(tensor_mesh(parts)):
        assert_near(*(fed(core, *arrays) for core in (half.fused, half.xla)))
    return "equal"


@shapes(6)
def test_every_shape_equals_xla_or_is_refused(shapes: int) -> None:
    search(check, CASES, shapes=shapes)
