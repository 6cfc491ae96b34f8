"""Freezing, on a real model and on eight devices."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.interpreters import partial_eval as pe

from bert_jax.errors import UserError
from bert_jax.model.bert import bert_builder
from bert_jax.model.config import Execution, HeadsSection
from bert_jax.optim.finetuning import frozen_parameters, make_finetune_optimizer
from bert_jax.optim.sections import FinetuneOptimizerSection
from bert_jax.optim.units import frozen_units, unit_names
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.train.state import ModelDefinition, abstract_state, define_model
from tests.support import small_architecture

DEPTH = 2
HEADS = HeadsSection(
    mlm=False, next_sentence=False, task="sequence_classification", labels=("no", "yes")
)


@pytest.fixture(scope="module")
def model() -> ModelDefinition:
    return define_model(bert_builder(small_architecture(), Execution(dtype="float32"), HEADS))


def draw(model: ModelDefinition, seed: int) -> Any:
    """Numbers for every parameter, every other one of them −0, whose sign a sum with 0 loses."""
    rng = np.random.default_rng(seed)

    def values(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        drawn = rng.standard_normal(leaf.shape).astype(np.float32)
        drawn.reshape(-1)[::2] = -0.0
        return drawn

    return jax.tree.map(values, model.params)


def gradients(model: ModelDefinition, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: rng.standard_normal(leaf.shape).astype(np.float32), model.params
    )


def by_unit(tree: Any) -> dict[str, list[bytes]]:
    """The bits of every parameter, by the unit it belongs to."""
    layers = tree["encoder"]["layers"]
    units = {
        "embeddings": tree["encoder"]["embeddings"],
        **{
            f"layers.{i}": jax.tree.map(lambda x, i=i: np.asarray(x)[i], layers)
            for i in range(DEPTH)
        },
        "pooler": tree["pooler"],
        "heads": tree["task"],
    }
    return {
        name: [np.asarray(x).tobytes() for x in jax.tree.leaves(u)] for name, u in units.items()
    }


def moved(
    model: ModelDefinition, section: FinetuneOptimizerSection, *, steps: int
) -> tuple[list[set[str]], Any]:
    """Returns the units in which some number has changed after each step, and the last state."""
    transform = make_finetune_optimizer(section, model.axes, depth=DEPTH)
    params = draw(model, 0)
    first, state, found = by_unit(params), jax.jit(transform.init)(params), []

    @jax.jit
    def advance(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        updates, state = transform.update(grads, state, params, learning_rate=1e-4)
        return optax.apply_updates(params, updates), state

    for step in range(steps):
        params, state = advance(gradients(model, step), state, params)
        now = by_unit(params)
        found.append({name for name in first if now[name] != first[name]})
    return found, state


@pytest.mark.parametrize(
    ("freeze", "trained", "bias_correction"),
    [
        ((), {"embeddings", "layers.0", "layers.1", "pooler", "heads"}, True),
        (("embeddings", "layers.0"), {"layers.1", "pooler", "heads"}, True),
        (("layers.1", "pooler"), {"embeddings", "layers.0", "heads"}, False),
        (("layers.0-1",), {"embeddings", "pooler", "heads"}, True),
        (("encoder",), {"pooler", "heads"}, False),
    ],
)
def test_a_frozen_unit_keeps_its_bits_and_moments_of_zero(
    model: ModelDefinition, freeze: tuple[str, ...], trained: set[str], bias_correction: bool
) -> None:
    section = FinetuneOptimizerSection(
        freeze=freeze, bias_correction=bias_correction, weight_decay=0.1, warmup_fraction=0.0
    )
    found, state = moved(model, section, steps=2)
    assert found == [trained, trained]
    (moments,) = (part for part in state if hasattr(part, "mu"))
    for tree in (moments.mu, moments.nu):
        for name, bits in by_unit(tree).items():
            assert all(any(b) for b in bits) is (name in trained)
            assert any(any(b) for b in bits) is (name in trained)


@pytest.mark.parametrize(
    "section",
    [
        FinetuneOptimizerSection(layer_decay=0.9, freeze=("layers.0",)),
        FinetuneOptimizerSection(bias_correction=False, freeze=("embeddings",)),
    ],
)
def test_its_state_lies_on_a_mesh_as_pretrainings_does(
    model: ModelDefinition, section: FinetuneOptimizerSection
) -> None:
    mesh = make_mesh(MeshSection(data=2, fsdp=2, tensor=2), jax.devices()[:8])
    transform = make_finetune_optimizer(section, model.axes, depth=DEPTH)
    abstract = abstract_state(model, transform, mesh)
    layouts = jax.tree.map(lambda leaf: leaf.sharding, (abstract.params, abstract.opt_state))

    def two_steps(grads: Any, params: Any) -> Any:
        update = functools.partial(transform.update, grads, learning_rate=1e-4)
        updates, state = update(transform.init(params), params)
        return update(state, optax.apply_updates(params, updates))

    params, grads = draw(model, 0), gradients(model, 1)
    with jax.set_mesh(mesh):
        split = jax.device_put((grads, params), (layouts[0], layouts[0]))
        updates, state = jax.jit(two_steps, out_shardings=layouts)(*split)
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, abstract.opt_state)
    (moments,) = (part for part in state if hasattr(part, "mu"))
    spec = moments.mu["task"]["kernel"].sharding.spec
    assert "data" in str(spec), "the moments are spread over the data axis"
    expected = jax.tree.leaves(jax.jit(two_steps)(grads, params))
    for found, other in zip(jax.tree.leaves((updates, state)), expected, strict=True):
        np.testing.assert_allclose(found, other, rtol=2e-5, atol=1e-9)


def test_a_frozen_encoder_costs_no_backward_pass(model: ModelDefinition) -> None:
    """A third of the products is left, though the norm of all gradients is computed too."""
    batch = {
        name: jnp.ones((4, 32), jnp.int32)
        for name in ("input_ids", "token_type_ids", "segment_ids")
    }

    def flops(section: FinetuneOptimizerSection) -> float:
        frozen = frozen_parameters(section, model.axes, depth=DEPTH)

        def loss(params: Any) -> jax.Array:
            params = jax.tree.map(
                lambda p, still: jax.lax.stop_gradient(p) if still else p, params, frozen
            )
            bert = nnx.merge(model.graphdef, params)
            return bert.task_logits(bert.hidden(batch, dropout_key=None)).sum()

        def norm(params: Any) -> jax.Array:
            return optax.tree.norm(jax.grad(loss)(params))

        cost = jax.jit(norm).lower(model.params).compile().cost_analysis()
        assert cost is not None
        return cost["flops"]

    full = flops(FinetuneOptimizerSection())
    assert flops(FinetuneOptimizerSection(freeze=("encoder",))) < 0.4 * full


def test_the_update_of_a_frozen_parameter_depends_on_no_gradient(model: ModelDefinition) -> None:
    """So that a compiler need not compute the gradient for it."""
    section = FinetuneOptimizerSection(freeze=("encoder",), clip_norm=None)
    transform = make_finetune_optimizer(section, model.axes, depth=DEPTH)
    state = jax.eval_shape(transform.init, model.params)
    update = functools.partial(transform.update, learning_rate=1e-4)
    traced = jax.make_jaxpr(update)(model.params, state, model.params)
    _, used = pe.dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))
    named = jax.tree.unflatten(
        jax.tree.structure(model.params), used[: len(jax.tree.leaves(model.params))]
    )
    assert not any(jax.tree.leaves(named["encoder"]))
    assert all(jax.tree.leaves((named["pooler"], named["task"])))


def test_only_parameters_frozen_in_every_layer_count_as_frozen(model: ModelDefinition) -> None:
    section = FinetuneOptimizerSection(freeze=("embeddings", "layers.0"))
    frozen = frozen_parameters(section, model.axes, depth=DEPTH)
    assert all(jax.tree.leaves(frozen["encoder"]["embeddings"]))
    assert not any(jax.tree.leaves(frozen["encoder"]["layers"]))
    assert not any(jax.tree.leaves((frozen["pooler"], frozen["task"])))


@given(data=st.data(), depth=st.integers(1, 30))
@settings(deadline=None, max_examples=25)
def test_a_range_freezes_both_its_ends_and_what_is_between(data: st.DataObject, depth: int) -> None:
    first = data.draw(st.integers(0, depth - 1))
    last = data.draw(st.integers(first, depth - 1))
    frozen = frozen_units((f"layers.{first}-{last}",), depth=depth)
    named = {name for name, on in zip(unit_names(depth), frozen, strict=True) if on}
    assert named == {f"layers.{layer}" for layer in range(first, last + 1)}


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("embedding", '; did you mean "embeddings"?'),
        ("layer.3", '; did you mean "layers.3"?'),
        ("layers.12", ""),
        ("layers.5-4", ""),
        ("layers.3-12", ""),
        ("layers.-1", ""),
        ("heads", ""),
        ("", ""),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_ones(name: str, near: str) -> None:
    with pytest.raises(UserError) as raised:
        frozen_units((name,), depth=12)
    message = str(raised.value)
    assert message.startswith(
        f'optimizer.freeze: found "{name}", allowed: embeddings, encoder, pooler, layers.N or '
        "layers.N-M with N ≤ M from 0 to 11"
    )
    assert "\n" not in message
    if near:
        assert message.endswith(near)
    elif name.startswith("layers.") and name != "layers.-1":
        assert "did you mean" not in message


def test_a_pooler_that_is_not_there_cannot_be_frozen() -> None:
    heads = HeadsSection(
        pooler=False, mlm=False, next_sentence=False, task="token_classification", labels=("O",)
    )
    model = define_model(bert_builder(small_architecture(), Execution(), heads))
    with pytest.raises(UserError, match='"pooler", which this task\'s model does not have'):
        make_finetune_optimizer(
            FinetuneOptimizerSection(freeze=("pooler",)),
            model.axes,
            depth=DEPTH,
        )
