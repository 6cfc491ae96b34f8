"""Compares `decoded_cross_entropy` and `cpu_cross_entropy` with `cross_entropy` of logits."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from bert_jax.kernels import cross_entropy as kernels
from bert_jax.kernels.cross_entropy import NO_PIECE
from bert_jax.kernels.cross_entropy_shape import Limits, groups_of
from bert_jax.model.cross_entropy import (
    Scored,
    cpu_cross_entropy,
    cross_entropy,
    decoded_cross_entropy,
)
from bert_jax.model.layers import add_bias
from bert_jax.model.tied_embedding import decoded, shares_of
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
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
from tests.support import relative_error, small_architecture


def fused(rows: Any, table: Any, bias: Any, labels: Any) -> Scored:
    return decoded_cross_entropy(rows, table, shares_of(table, "float32"), bias, labels)


def on_a_cpu(rows: Any, table: Any, bias: Any, labels: Any) -> Scored:
    return cpu_cross_entropy(rows, table, shares_of(table, "float32"), bias, labels)


def xla(rows: Any, table: Any, bias: Any, labels: Any) -> Scored:
    """Returns the loss as `MlmHead` computes it on accelerators without kernels."""
    logits = add_bias(decoded(rows, table, shares_of(table, "float32")), bias)
    return Scored(*(each[0] for each in cross_entropy(logits[None], labels[None])))


@functools.partial(jax.jit, static_argnums=0)
def score(core: Any, rows: Any, table: Any, bias: Any, labels: Any, weights: Any) -> Any:
    """Returns the gradients of the weighted loss, then losses and hits."""

    def value(rows: Any, table: Any, bias: Any) -> tuple[Any, Any]:
        found = core(rows, table, bias, labels)
        return (found.loss * weights).sum(), found

    return jax.grad(value, (0, 1, 2), has_aux=True)(rows, table, bias)


def drawn(
    rows: int, hidden: int, pieces: int, *, vocab_size: int | None = None, size: float = 1.0
) -> list[Any]:
    """Returns rows, padded table, bias, labels (first and last piece included), and weights."""
    rng = np.random.default_rng(0)
    used = vocab_size or pieces
    x = size * rng.standard_normal((rows, hidden))
    table = np.where(np.arange(pieces)[:, None] < used, rng.standard_normal((pieces, hidden)), 0.0)
    bias = np.where(np.arange(pieces) < used, rng.standard_normal(pieces), NO_PIECE)
    labels = rng.integers(0, used, rows)
    labels[:2] = 0, used - 1
    weights = np.where(np.arange(rows) % 4 == 3, 0.0, rng.uniform(0.1, 1.0, rows))
    numbers = (x / np.sqrt(hidden), table, bias)
    arrays = [jnp.asarray(each, jnp.float32) for each in numbers]
    return [*arrays, jnp.asarray(labels, jnp.int32), jnp.asarray(weights, jnp.float32)]


def assert_same(found: Any, expected: Any) -> None:
    (*gradients, scored), (*others, other) = (jax.tree.leaves(each) for each in (found, expected))
    np.testing.assert_array_equal(scored, other)  # correct predictions
    for one, another in zip(gradients, others, strict=True):
        assert relative_error(one, another) < 2e-5


BOTH = pytest.mark.parametrize("core", [fused, on_a_cpu])
SIZES = [
    (12, 64, 256, 250),
    (5, 32, 128, 128),
    (77, 48, 640, 601),  # tiles of 512 and 256: the table's last tile is partial
    (300, 16, 1408, 1300),  # several strips of rows; an odd number of tiles
]


@BOTH
@pytest.mark.parametrize(("rows", "hidden", "pieces", "vocab_size"), SIZES)
def test_it_equals_the_loss_of_logits(
    core: Any, rows: int, hidden: int, pieces: int, vocab_size: int
) -> None:
    arrays = drawn(rows, hidden, pieces, vocab_size=vocab_size)
    found = score(core, *arrays)
    assert_same(found, score(xla, *arrays))
    (_, of_table, of_bias), _ = found
    assert (of_table[vocab_size:] == 0).all()
    assert (of_bias[vocab_size:] == 0).all()


@pytest.mark.parametrize("cores", [1, 2])
def test_rows_beyond_vmem_are_split_into_groups(
    cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table's gradient is summed over groups. Each of two cores processes half of the table."""
    monkeypatch.setattr(kernels, "groups_of", lambda rows, **sizes: (3, 16))
    monkeypatch.setattr(kernels, "cores_of_device", lambda: cores)
    arrays = drawn(41, 24, 1024)
    assert_same(score(functools.partial(fused), *arrays), score(xla, *arrays))


def test_with_more_vmem_tiles_are_larger_and_rows_are_one_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = {"hidden": 768, "pieces": 50_368, "itemsize": 2}
    groups = {vmem: groups_of(5424, **sizes, limits=Limits.of(vmem << 20)) for vmem in (16, 128)}
    assert groups == {16: (4, 1360), 128: (1, 5424)}
    arrays = drawn(300, 16, 1408, vocab_size=1300)
    for vmem in (16, 128):
        monkeypatch.setattr(kernels, "vmem_of_device", functools.partial(int, vmem << 20))
        core = functools.partial(fused)  # traced again
        program = str(jax.make_jaxpr(score, static_argnums=0)(core, *arrays))
        of_strip = "f32[128,256] = exp"  # of the smaller tiles and strips
        assert (of_strip in program) is (vmem == 16)
    assert_same(score(core, *arrays), score(xla, *arrays))


@BOTH
def test_large_logits_do_not_overflow(core: Any) -> None:
    arrays = drawn(12, 64, 256, vocab_size=250, size=1e4)
    found = score(core, *arrays)
    assert_same(found, score(xla, *arrays))
    assert all(jnp.isfinite(each).all() for each in jax.tree.leaves(found))
    assert found[1].loss.max() > 1e4


def test_bfloat16_error_is_no_larger_than_from_logits() -> None:
    wide = drawn(96, 64, 640, vocab_size=601)
    narrow = [wide[0].astype(jnp.bfloat16), *wide[1:]]
    expected, _ = score(xla, *wide)
    errors = {
        core: [
            relative_error(np.asarray(one, np.float32), other)
            for one, other in zip(score(core, *narrow)[0], expected, strict=True)
        ]
        for core in (fused, xla)
    }
    assert score(fused, *narrow)[0][0].dtype == jnp.bfloat16
    assert max(errors[fused]) < 1.5 * max(errors[xla]) < 0.03


@pytest.mark.parametrize(
    "shape", [{"data": 8}, {"data": 2, "fsdp": 2, "tensor": 2}, {"tensor": 8}], ids=str
)
def test_a_mesh_splits_rows_and_pieces(shape: dict[str, int]) -> None:
    arrays = drawn(24, 32, 1152, vocab_size=1100)
    expected = score(xla, *arrays)
    with jax.set_mesh(make_mesh(MeshSection.model_validate(shape))):
        assert_same(score(fused, *arrays), expected)


CASES = {
    "rows": st.one_of(st.integers(2, 40), st.integers(2, 300)),
    # With one column, XLA's CPU compiler would round the logits of the interpreted kernel twice.
    "hidden": mostly(st.integers(2, 200), st.integers(2, 2600)),
    "vocab_size": mostly(st.integers(2, 700), st.integers(2, 4000)),
    "parts": st.sampled_from(PARTS),
    "dtype": st.sampled_from(["float32", "bfloat16"]),
}


def check(*, rows: int, hidden: int, vocab_size: int, parts: int, dtype: str) -> Outcome:
    """Compares a shape in float32. `dtype` only selects the limit."""
    sizes = {"hidden_size": hidden, "num_attention_heads": 1, "vocab_size": vocab_size}
    architecture = small_architecture(**sizes)
    if refused("loss", architecture, dtype=dtype, parts=parts):
        return "refused"
    arrays = drawn(rows, hidden, architecture.padded_vocab_size, vocab_size=vocab_size)
    with jax.set_mesh(tensor_mesh(parts)):
        found, expected = (score(core, *arrays) for core in (fused, xla))
    assert_near(found, expected)
    return "equal"


@shapes(5)
def test_every_shape_equals_the_loss_of_logits_or_is_refused(shapes: int) -> None:
    search(check, CASES, shapes=shapes)
