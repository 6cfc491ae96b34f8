"""Freezing, on a real model and on eight devices."""

from typing import Any

import jax
import numpy as np
import optax
import pytest

from bert_jax.errors import UserError
from bert_jax.model.bert import bert_builder
from bert_jax.model.config import Execution, HeadsSection
from bert_jax.optim.finetuning import frozen_units, make_finetune_optimizer
from bert_jax.optim.sections import FinetuneOptimizerSection
from bert_jax.train.state import ModelDefinition, define_model
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
