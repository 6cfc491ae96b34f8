"""Dropout: its rate, independence and gradient, and equal masks on every mesh."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.kernels import random_bits
from bert_jax.kernels.random_bits import (
    column_factors,
    kept,
    line_words,
    row_factors,
    tile_seeds,
)
from bert_jax.model.dropout import dropout
from bert_jax.model.layers import subkey
from bert_jax.model.row_key import numbered_rows
from bert_jax.model.section import Execution
from bert_jax.objectives.registry import OBJECTIVES, make_objective
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.parallel.sharding_rules import partition_spec
from tests.model.parts import fresh_params, model_of
from tests.support import loss_of, small_batch, small_encoder, small_task

SIGMAS = 5.0  # bound, in standard deviations, for hundreds of statistics
ROWS, WIDTH = 2048, 512


@given(rate=st.floats(0.01, 0.9), seed=st.integers(0, 2**31 - 1))
@settings(deadline=None, max_examples=15)
def test_it_drops_at_its_rate_and_scales_the_rest(rate: float, seed: int) -> None:
    found = np.asarray(dropout(jnp.ones((400, 500)), rate, jax.random.key(seed)))
    kept = found[found != 0]
    share = 1 - kept.size / found.size
    assert abs(share - rate) < SIGMAS * np.sqrt(rate * (1 - rate) / found.size)
    np.testing.assert_allclose(kept, 1 / (1 - rate), rtol=1e-6)


def test_without_a_key_or_a_rate_it_is_the_identity() -> None:
    x = jnp.ones((3, 4))
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, jax.random.key(0)) is x
    assert subkey(None, 3) is None


def test_dropped_elements_get_no_gradient() -> None:
    """The backward pass recomputes the mask of the forward pass."""
    x = jnp.ones((64, 64), jnp.bfloat16)
    out, pull = jax.vjp(jax.jit(lambda y: dropout(y, 0.3, jax.random.key(1))), x)
    assert out.dtype == jnp.bfloat16
    assert 0 < np.count_nonzero(out) < out.size
    (gradient,) = pull(jnp.ones_like(out))
    np.testing.assert_array_equal(np.asarray(gradient), np.asarray(out))


@pytest.mark.parametrize("rate", [0.1, 0.15])
def test_it_keeps_the_mean_of_bfloat16_states_and_gradients(rate: float) -> None:
    x = 1 + jax.random.uniform(jax.random.key(0), (1024, 512), jnp.bfloat16)
    out, pull = jax.vjp(lambda y: dropout(y, rate, jax.random.key(1)), x)
    (gradient,) = pull(x)
    for found in (out, gradient):
        kept = np.asarray(found, np.float64)[found != 0]
        sent = np.asarray(x, np.float64)[found != 0]
        assert kept.sum() * (1 - rate) / sent.sum() == pytest.approx(1, abs=1e-4)


def masks(rate: float, *, seed: int = 0) -> np.ndarray:
    """Returns a mask scaled to mean 0 and standard deviation 1, float64 [ROWS, WIDTH]."""
    kept = np.asarray(dropout(jnp.ones((ROWS, WIDTH)), rate, jax.random.key(seed))) > 0
    return (kept - (1 - rate)) / np.sqrt(rate * (1 - rate))


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_neighbours_rows_and_columns_are_independent(rate: float) -> None:
    mask = masks(rate)
    for lag in (1, 2, 3, 4, 8, 16, 32, 64, 128, 256):
        for ahead, behind in ((mask[:, lag:], mask[:, :-lag]), (mask[lag:], mask[:-lag])):
            deviates = (ahead * behind).mean() * np.sqrt(ahead.size)
            assert abs(deviates) < SIGMAS, lag
    for of, count in ((mask.T, ROWS), (mask[:512], WIDTH)):
        products = (of @ of.T)[np.triu_indices(len(of), 1)] / np.sqrt(count)
        # For independent masks, the variance of the 130,816 products is 1.
        assert abs(products.var() - 1) < SIGMAS * np.sqrt(4 / products.size)


def drawn_words(key: jax.Array, rows: int, width: int) -> np.ndarray:
    """Returns the words of one tile."""
    lines = (jnp.arange(count, dtype=jnp.int32) for count in (rows, width))
    down, across = map(line_words, lines, tile_seeds(key, ()))
    return np.asarray(down[:, None] * across)


def test_tiles_of_rows_and_heads_have_independent_masks() -> None:
    kept = np.asarray(dropout(jnp.ones((4, 12, 64, 64)), 0.1, jax.random.key(2))) > 0
    tiles = ((kept - 0.9) / np.sqrt(0.1 * 0.9)).reshape(48, -1)
    products = (tiles @ tiles.T)[np.triu_indices(48, 1)] / np.sqrt(64 * 64)
    assert abs(products).max() < SIGMAS


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_four_corners_of_a_rectangle_are_independent(rate: float) -> None:
    """The words of four elements are products of rows a and b with columns c and d."""
    mask = masks(rate)
    rows, columns = ROWS // 2, WIDTH // 2
    for down, across in ((1, 1), (1, 8), (rows, columns), (rows // 2, 3)):
        pairs = mask[:rows] * mask[down : down + rows]
        corners = pairs[:, :columns] * pairs[:, across : across + columns]
        assert abs(corners.mean()) * np.sqrt(corners.size) < SIGMAS


def test_every_bit_of_a_word_is_fair() -> None:
    drawn = drawn_words(jax.random.key(3), ROWS, WIDTH)
    for bit in range(20, 32):  # a word has 12 bits
        deviates = (((drawn >> bit) & 1).mean() - 0.5) * 2 * np.sqrt(drawn.size)
        assert abs(deviates) < SIGMAS, bit


def test_composed_int32_products_give_the_same_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = jnp.arange(512, dtype=jnp.int32)
    down, across = (line_words(lines, seed)[:, None] for seed in tile_seeds(jax.random.key(4), ()))
    device = jax.sharding.AbstractDevice(device_kind="TPU v4", num_cores=1, platform="tpu")
    v4 = jax.sharding.AbstractMesh((1,), ("data",), abstract_device=device)
    with jax.sharding.use_abstract_mesh(v4):
        assert random_bits.composes_words()
    assert not random_bits.composes_words()
    for rate in (0.1, 0.37, 0.999):
        with monkeypatch.context() as patch:  # nothing runs on an abstract mesh
            patch.setattr(random_bits, "composes_words", lambda: True)
            rows, columns = row_factors(down), column_factors(across.T, rate)
        assert [each.dtype for each in rows] == [jnp.float32, jnp.float32]
        whole = kept(row_factors(down), column_factors(across.T, rate))
        np.testing.assert_array_equal(kept(rows, columns), whole)


def test_masks_equal_the_recorded_ones() -> None:
    """Resumed runs must draw the same masks."""
    kept = np.asarray(dropout(jnp.ones((2, 3, 16)), 0.3, jax.random.key(7))) > 0
    found = ["".join(map(str, row.astype(int))) for row in kept.reshape(6, 16)]
    expected = """
        1110111111111011 1101111111111011 0110111101101111
        1111111110010010 1111011111111000 1010111011111111
    """
    assert found == expected.split()


def test_layers_and_steps_have_independent_keys() -> None:
    keys = [jax.random.fold_in(jax.random.key(0), at) for at in range(6)]
    flat = [np.asarray(drawn_words(key, 256, 256), np.float64).ravel() / 2**32 for key in keys]
    for one, other in itertools.combinations(flat, 2):
        assert abs((one * other).mean() * 12 * np.sqrt(one.size)) < SIGMAS


@pytest.mark.parametrize("axes", [("batch", "length", "hidden"), ("batch", "heads", "length")])
def test_no_mesh_changes_a_mask(axes: tuple[str, ...]) -> None:
    x = jnp.ones((8, 8, 16))

    def drop(y: jax.Array) -> jax.Array:
        return dropout(y, 0.4, jax.random.key(5))

    expected = np.asarray(jax.jit(drop)(x))
    mesh = make_mesh(MeshSection(data=2, fsdp=2, tensor=2))
    layout = jax.NamedSharding(mesh, partition_spec(axes))
    found = jax.jit(drop)(jax.device_put(x, layout))
    np.testing.assert_array_equal(np.asarray(found), expected)


@pytest.mark.parametrize("shape", [(8, 16), (8, 4, 16), (8, 2, 4, 16)])
@pytest.mark.parametrize("each", [1, 3])  # rows of the array for each row of the batch
def test_a_microbatch_has_its_part_of_the_masks(shape: tuple[int, ...], each: int) -> None:
    key, parts = jax.random.key(6, impl="threefry2x32"), 4

    def masks_of(key: jax.Array, rows: int) -> jax.Array:
        return dropout(jnp.ones((rows * each, *shape[1:])), 0.4, subkey(key, 2))

    whole = np.asarray(masks_of(key, 8)).reshape(8, each, *shape[1:])
    for part in range(parts):
        numbered = numbered_rows(key, first=part, step=parts, rows=2)
        found = np.asarray(masks_of(numbered, 2)).reshape(2, each, *shape[1:])
        np.testing.assert_array_equal(found, whole[part::parts])


@pytest.mark.parametrize(
    ("encoder", "attention"), [("bert", "fused"), ("bert", "xla"), ("modernbert", "xla")]
)
def test_a_microbatch_has_its_part_of_the_states(encoder: str, attention: str) -> None:
    sizes: dict[str, Any] = {"hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 2}
    if encoder == "modernbert":  # one local layer, whose window is shorter than a row
        sizes |= {"global_every": 2, "window": 8}
    task = make_objective(
        OBJECTIVES["roberta"].model_validate({}),
        architecture=small_encoder(encoder, **sizes).with_dropout(0.1),
        execution=Execution.model_validate({"dtype": "float32", "attention": attention}),
        tokenizer=None,  # pyright: ignore[reportArgumentType] (only `features` needs one)
    )
    params, batch = fresh_params(task), small_batch(rows=4)

    @jax.jit
    def states(batch: Any, key: jax.Array) -> jax.Array:
        return model_of(task, params).hidden(batch, dropout_key=key)

    key = jax.random.key(8, impl="threefry2x32")
    part = {name: array[1::2] for name, array in batch.items()}
    found = states(part, numbered_rows(key, first=1, step=2, rows=2))
    np.testing.assert_allclose(found, states(batch, key)[1::2], atol=1e-5)


def test_the_masks_of_all_layers_are_prepared_before_the_layers() -> None:
    """On a TPU, each of the small operations of a layer would take a microsecond."""
    fused: Any = {"attention": "fused", "norm": "fused"}
    task = small_task(execution=fused, hidden_size=128, num_hidden_layers=3)
    params = fresh_params(task)
    batch = {name: jnp.asarray(array) for name, array in small_batch(rows=2).items()}

    def loss(params: Any, key: Any) -> Any:
        return loss_of(task, model_of(task, params), batch, dropout_key=key)[0]

    program = jax.make_jaxpr(loss)(params, jax.random.key(0))
    layers = [str(each.params["jaxpr"]) for each in program.eqns if each.primitive.name == "scan"]
    assert "random_bits" in str(program)
    assert layers
    assert all("random_bits" not in each for each in layers)
