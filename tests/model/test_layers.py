"""Initial parameters, attention, heads. Remat and unrolling change no gradient."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.kernels.cross_entropy import NO_PIECE
from bert_jax.model.initial import TruncatedNormal
from bert_jax.model.layers import ParamUse, project
from bert_jax.model.xla_attention import xla_attention
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.train.state import abstract_params, define_model, draw_params, named
from tests.model.parts import fresh_params, model_of
from tests.support import loss_of, relative_error, small_batch, small_task
from tests.train.harness import QUICK

pytestmark = pytest.mark.slow


def attend(segments: np.ndarray, *, seed: int = 0) -> np.ndarray:
    q, k, v = np.random.default_rng(seed).standard_normal((3, 1, len(segments), 2, 4))
    arrays = (jnp.asarray(x, jnp.float32) for x in (q, k, v))
    ids = jnp.asarray(segments, jnp.int32)[None]
    return np.asarray(xla_attention(*arrays, ids, dropout_rate=0.0, dropout_key=None))[0]


def test_a_token_attends_only_to_its_own_segment() -> None:
    together = attend(np.array([1, 1, 1, 2, 2, 0, 0]))
    np.testing.assert_allclose(together[:3], attend(np.array([1, 1, 1, 3, 4, 5, 6]))[:3], atol=1e-6)
    np.testing.assert_allclose(
        together[3:5], attend(np.array([5, 6, 7, 2, 2, 8, 9]))[3:5], atol=1e-6
    )
    # A token that is alone in its segment attends only to itself.
    alone = attend(np.arange(1, 8))
    v = np.random.default_rng(0).standard_normal((3, 1, 7, 2, 4))[2, 0]
    np.testing.assert_allclose(alone, v, atol=1e-6)


def test_attention_in_parts_equals_the_whole_batch() -> None:
    rows, length = 12, 128  # 65,536 scores per row: six parts of two rows
    rng = np.random.default_rng(1)
    arrays = [jnp.asarray(x, jnp.float32) for x in rng.standard_normal((4, rows, length, 4, 8))]
    segments = jnp.asarray(np.arange(length) < rng.integers(9, length, (rows, 1)), jnp.int32)

    def both_passes(q: Any, k: Any, v: Any, gradient: Any) -> Any:
        dropped = {"dropout_rate": 0.1, "dropout_key": jax.random.key(7)}
        attend = functools.partial(xla_attention, segment_ids=segments, **dropped)
        attended, backward = jax.vjp(attend, q, k, v)
        return attended, *backward(gradient)

    whole = jax.jit(both_passes).lower(*arrays)
    with jax.set_mesh(make_mesh(MeshSection(data=1), jax.devices()[:1])):
        apart = jax.jit(both_passes).lower(*arrays)
    with jax.set_mesh(make_mesh(MeshSection(data=2), jax.devices()[:2])):
        shared = jax.jit(both_passes).lower(*arrays)
    found = [each.as_text().count("dot_general") for each in (whole, apart, shared)]
    assert found == [6, 6 * 6, 6]
    expected = whole.compile()(*arrays)
    for each, other in zip(apart.compile()(*arrays), expected, strict=True):
        np.testing.assert_allclose(each, other, atol=1e-6)


@functools.cache
def small() -> tuple[Any, Any]:
    task = small_task(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return task, fresh_params(task)


def batch_of(rows: int) -> dict[str, jax.Array]:
    return {name: jnp.asarray(array) for name, array in small_batch(rows=rows).items()}


@functools.cache
def encode() -> Any:
    task, params = small()

    def run(ids: Any, types: Any, segments: Any, positions: Any) -> Any:
        batch = {"input_ids": ids, "token_type_ids": types, "segment_ids": segments}
        model = model_of(task, params)
        return model.hidden({**batch, "position_ids": positions}, dropout_key=None)

    return jax.jit(run)


def ids_of(*lengths: int) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.integers(5, 250, length) for length in lengths]


def row(examples: list[np.ndarray], *, length: int = 24) -> tuple[Any, ...]:
    """Packs examples into one row, and returns its ids, types, segments and positions."""
    arrays = np.zeros((4, 1, length), np.int32)
    start = 0
    for number, ids in enumerate(examples, 1):
        part = slice(start, start + len(ids))
        arrays[0, 0, part] = ids
        arrays[1, 0, part] = np.arange(len(ids)) > len(ids) // 2
        arrays[2, 0, part] = number
        arrays[3, 0, part] = np.arange(len(ids))
        start += len(ids)
    return tuple(jnp.asarray(array) for array in arrays)


def test_packed_examples_equal_single_ones() -> None:
    examples = ids_of(7, 5, 9)
    packed = np.asarray(encode()(*row(examples)))[0]
    start = 0
    for ids in examples:
        alone = np.asarray(encode()(*row([ids])))[0, : len(ids)]
        np.testing.assert_allclose(packed[start : start + len(ids)], alone, atol=1e-5)
        start += len(ids)


def test_padding_never_reaches_a_real_token() -> None:
    ids, types, segments, positions = row(ids_of(10))
    clean = np.asarray(encode()(ids, types, segments, positions))[0, :10]
    padding = segments == 0
    dirty = encode()(jnp.where(padding, 77, ids), types | padding, segments, positions)
    np.testing.assert_array_equal(np.asarray(dirty)[0, :10], clean)


def loss_and_gradients(*, unroll: int = 1, **execution: Any) -> tuple[float, Any]:
    """Returns loss and gradients. Dropout is on, to reveal wrongly recomputed masks."""
    _, params = small()
    dtype = execution.pop("dtype", "float32")
    task = small_task(dtype=dtype, execution={"unroll": unroll, **execution})
    batch = batch_of(4)

    def loss(params: Any) -> Any:
        model = model_of(task, params)
        return loss_of(task, model, batch, dropout_key=jax.random.key(3))[0]

    lowered = jax.jit(jax.value_and_grad(loss)).lower(params)
    return jax.device_get(lowered.compile(compiler_options=QUICK)(params))


@functools.cache
def plain() -> tuple[float, Any]:
    return loss_and_gradients()


def assert_close(found: tuple[float, Any], expected: tuple[float, Any], *, rel: float) -> None:
    assert found[0] == pytest.approx(expected[0], rel=rel)
    paths = jax.tree_util.tree_leaves_with_path(found[1])
    for (path, leaf), other in zip(paths, jax.tree.leaves(expected[1]), strict=True):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        assert leaf.dtype == np.float32
        if name != "encoder/layers/attention/key/bias":  # zero except for rounding
            assert relative_error(leaf, other) < rel, name


@pytest.mark.parametrize(
    "execution",
    [{"remat": "attention"}, {"remat": "dots"}, {"remat": "full"}, {"unroll": 2}],
    ids=str,
)
def test_remat_and_unrolling_change_no_gradient(execution: dict[str, Any]) -> None:
    assert_close(loss_and_gradients(**execution), plain(), rel=1e-5)


def test_bfloat16_stays_close_and_its_loss_is_float32() -> None:
    """Compares all gradients together.

    The gradient of a single bias is a small difference of large numbers. In bfloat16, little more
    than its sign is correct.
    """
    (loss, gradients), (expected_loss, expected) = loss_and_gradients(dtype="bfloat16"), plain()
    assert loss.dtype == np.float32
    assert loss == pytest.approx(expected_loss, rel=1e-3)
    leaves = [
        np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])
        for tree in (gradients, expected)
    ]
    assert {leaf.dtype for leaf in jax.tree.leaves(gradients)} == {np.dtype(np.float32)}
    assert relative_error(*leaves) < 0.02


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernel_gradients_are_summed_in_the_set_dtype(dtype: Any) -> None:
    rows = jax.random.normal(jax.random.key(0), (3, 8, 16), jnp.bfloat16)
    kernel = jax.random.normal(jax.random.key(1), (16, 16))

    def loss(kernel: jax.Array, rows: jax.Array) -> jax.Array:
        y = project(rows, kernel, use=ParamUse(("hidden", "hidden"), dtype))
        assert y.dtype == rows.dtype
        return jnp.square(y.astype(jnp.float32)).sum()

    of_kernel, of_rows = jax.grad(loss, (0, 1))(kernel, rows)
    assert (of_kernel.dtype, of_rows.dtype) == (jnp.float32, jnp.bfloat16)
    is_rounded = jnp.array_equal(of_kernel, of_kernel.astype(jnp.bfloat16))
    assert bool(is_rounded) is (dtype == "bfloat16")
    wide = [array.astype(jnp.float32) for array in (kernel.astype(jnp.bfloat16), rows)]
    expected_kernel, expected_rows = jax.grad(loss, (0, 1))(*wide)
    assert relative_error(of_kernel, expected_kernel) < 1e-2
    assert relative_error(of_rows.astype(jnp.float32), expected_rows) < 1e-2


def test_vocabulary_padding_never_wins_or_learns() -> None:
    task, params = small()
    batch = batch_of(4)

    @jax.jit
    def logits_of(params: Any) -> jax.Array:
        model = model_of(task, params)
        hidden = model.hidden(batch, dropout_key=None)
        return model.mlm_logits(hidden, batch["masked_lm_positions"])

    logits = logits_of(params)
    assert logits.shape[-1] == 256
    assert (np.asarray(logits[..., 250:]) == NO_PIECE).all()
    assert (np.asarray(params["encoder"]["embeddings"]["word"])[250:] == 0).all()
    _, gradients = plain()
    assert (gradients["encoder"]["embeddings"]["word"][250:] == 0).all()
    assert (gradients["mlm"]["bias"][250:] == 0).all()
    assert (gradients["mlm"]["bias"][5:250] != 0).all()


def test_initial_weights_are_truncated_normals_ones_and_zeros() -> None:
    """A normal distribution truncated at two deviations has a standard deviation of 0.8796."""
    params = fresh_params(small_task(vocab_size=2000, hidden_size=128, intermediate_size=256))
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name.endswith("scale"):
            assert (leaf == 1).all(), name
        elif name.endswith("bias"):
            assert (leaf == 0).all(), name
        else:
            drawn = leaf[:2000] if name.endswith("word") else leaf
            assert np.abs(drawn).max() <= 2 * 0.02 * (1 + 1e-6), name
            sigma = 0.8796 * 0.02
            assert abs(drawn.mean()) < 5 * sigma / np.sqrt(drawn.size), name
            assert abs(drawn.std() / sigma - 1) < 5 / np.sqrt(2 * drawn.size), name


def test_parameters_and_layers_start_differently() -> None:
    _, params = small()
    layers = params["encoder"]["layers"]
    kernels = [layers["attention"][name]["kernel"] for name in ("query", "key", "value")]
    drawn = [kernel[index].ravel() for kernel in kernels for index in range(2)]
    for i, one in enumerate(drawn):
        for other in drawn[:i]:
            assert abs(np.corrcoef(one, other)[0, 1]) < 0.1


def test_execution_does_not_change_the_parameter_tree() -> None:
    shapes = [
        define_model(task.build).params
        for task in (
            small_task(),
            small_task(dtype="bfloat16", execution={"remat": "full", "unroll": 1}),
        )
    ]
    assert jax.tree.map(lambda x: (x.shape, x.dtype), shapes[0]) == jax.tree.map(
        lambda x: (x.shape, x.dtype), shapes[1]
    )


NORMAL = TruncatedNormal(0.02)


def test_the_numbers_of_a_seed_equal_the_recorded_ones() -> None:
    """A longer table starts with the rows of a shorter table."""
    found = NORMAL.values((2, 2), seed=7, name="kernel").ravel()
    expected = [-0.0034391680, 0.0011470966, 0.014643577, -0.0089504113]
    np.testing.assert_allclose(found, expected, rtol=1e-7)
    np.testing.assert_array_equal(NORMAL.values((4,), seed=7, name="kernel"), found)
    for seed, name in ((8, "kernel"), (7, "bias")):
        assert not np.isin(NORMAL.values((4,), seed=seed, name=name), found).any()


@pytest.mark.parametrize("part", ["pooler", "mlm"])
def test_a_part_starts_as_in_the_whole_model(part: str) -> None:
    model = define_model(small_task().build)
    abstract = abstract_params(model, make_mesh(MeshSection()))
    whole = draw_params(model, abstract, seed=3)
    alone = draw_params(model, {part: abstract[part]}, seed=3)
    assert alone.keys() == {part}
    for (name, found), (_, expected) in zip(named(alone), named({part: whole[part]}), strict=True):
        np.testing.assert_array_equal(found, expected, err_msg=name)
        assert found.sharding == expected.sharding
