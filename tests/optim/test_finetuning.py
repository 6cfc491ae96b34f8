"""The optimizer of fine-tuning against torch's AdamW, a parameter group for every layer."""

from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from bert_jax.errors import UserError
from bert_jax.optim.finetuning import frozen_units, make_finetune_optimizer, make_schedule
from bert_jax.optim.optimizer import schedule_count
from bert_jax.optim.schedule import learning_rate
from bert_jax.optim.sections import FinetuneOptimizerSection

DEPTH, STEPS = 3, 20
AXES: dict[str, Any] = {
    "encoder": {
        "embeddings": {"word": ("vocab", "embed"), "norm": {"scale": ("hidden",)}},
        "layers": {"kernel": ("layers", "embed", "mlp"), "bias": ("layers", "mlp")},
    },
    "pooler": {"kernel": ("embed", "pooled")},
    "task": {"kernel": ("embed", "classes"), "bias": ("classes",)},
}
# The parameters as torch has them, one for each layer: unit, and whether it decays.
PARTS = {
    "encoder/embeddings/word": ("embeddings", True),
    "encoder/embeddings/norm/scale": ("embeddings", False),
    **{f"encoder/layers/kernel/{i}": (f"layers.{i}", True) for i in range(DEPTH)},
    **{f"encoder/layers/bias/{i}": (f"layers.{i}", False) for i in range(DEPTH)},
    "pooler/kernel": ("pooler", True),
    "task/kernel": ("heads", True),
    "task/bias": ("heads", False),
}
ALL = {unit for unit, _ in PARTS.values()}


def tree(seed: int, scale: float = 1.0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray:
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    return {
        "encoder": {
            "embeddings": {"word": draw(7, 4), "norm": {"scale": draw(4)}},
            "layers": {"kernel": draw(DEPTH, 4, 5), "bias": draw(DEPTH, 5)},
        },
        "pooler": {"kernel": draw(4, 4)},
        "task": {"kernel": draw(4, 2), "bias": draw(2)},
    }


def gradients(step: int) -> dict[str, Any]:
    """Now above, now below the norm that is clipped at."""
    return tree(100 + step, scale=0.02 if step % 2 else 3.0)


def parts(values: Any) -> dict[str, np.ndarray]:
    """A tree's parameters by the names of `PARTS`, the layers taken apart."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(values):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        rows = (
            {f"{name}/{i}": row for i, row in enumerate(np.asarray(leaf))}
            if "/layers/" in name
            else None
        )
        found |= {key: np.asarray(value) for key, value in (rows or {name: leaf}).items()}
    assert found.keys() == PARTS.keys()
    return found


def ours(section: FinetuneOptimizerSection) -> list[dict[str, np.ndarray]]:
    """Parameters after every step."""
    transform = make_finetune_optimizer(section, AXES, depth=DEPTH)
    schedule = make_schedule(section, total_steps=STEPS)
    params = jax.tree.map(jnp.asarray, tree(0))
    state, history = transform.init(params), []

    @jax.jit
    def advance(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        rate = learning_rate(schedule, schedule_count(state))
        updates, state = transform.update(grads, state, params, learning_rate=rate)
        return optax.apply_updates(params, updates), state

    for step in range(STEPS):
        params, state = advance(gradients(step), state, params)
        history.append(parts(params))
    return history


def torch_adamw(
    section: FinetuneOptimizerSection, *, factors: dict[str, float], trained: Collection[str] = ALL
) -> list[dict[str, np.ndarray]]:
    """Parameters after every step of `torch.optim.AdamW` in float64.

    Args:
        section: its constants.
        factors: what each unit's rate is multiplied by; without an entry by 1.
        trained: units that get gradients; torch leaves a parameter without a gradient alone.
    """
    tensors = {n: torch.tensor(v, dtype=torch.float64) for n, v in parts(tree(0)).items()}
    groups = [
        {"params": [tensors[name]], "weight_decay": section.weight_decay if decays else 0.0}
        for name, (_, decays) in PARTS.items()
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=1.0, betas=(section.beta1, section.beta2), eps=section.eps
    )
    warmup, history = 2, []
    for step in range(STEPS):
        line = step / warmup if step < warmup else (STEPS - step) / (STEPS - warmup)
        grads = {
            name: torch.tensor(value, dtype=torch.float64)
            for name, value in parts(gradients(step)).items()
            if PARTS[name][0] in trained
        }
        norm = sum(float((g**2).sum()) for g in grads.values()) ** 0.5
        for (name, tensor), group in zip(tensors.items(), optimizer.param_groups, strict=True):
            tensor.grad = grads[name] / max(norm, 1.0) if name in grads else None
            group["lr"] = section.learning_rate * line * factors.get(PARTS[name][0], 1.0)
        optimizer.step()
        history.append({name: tensor.numpy().copy() for name, tensor in tensors.items()})
    return history


def assert_same(found: list[dict[str, np.ndarray]], expected: list[dict[str, np.ndarray]]) -> None:
    """That every parameter has gone the same way, to a 10,000th of the way or a float's digit."""
    start = parts(tree(0))
    for step, (one, other) in enumerate(zip(found, expected, strict=True)):
        for name in PARTS:
            np.testing.assert_allclose(
                one[name], other[name], rtol=1e-5, atol=1e-6, err_msg=f"{name} after step {step}"
            )
    for name, value in found[-1].items():
        way, expected_way = value - start[name], expected[-1][name] - start[name]
        np.testing.assert_allclose(way, expected_way, rtol=1e-3, atol=1e-6, err_msg=name)


def test_without_its_extras_it_is_torchs_adamw() -> None:
    section = FinetuneOptimizerSection(learning_rate=1e-2)
    assert_same(ours(section), torch_adamw(section, factors={}))


def test_layer_decay_is_a_rate_for_each_layer() -> None:
    section = FinetuneOptimizerSection(learning_rate=1e-2, layer_decay=0.5)
    factors = {"layers.2": 0.5, "layers.1": 0.25, "layers.0": 0.125, "embeddings": 0.0625}
    assert_same(ours(section), torch_adamw(section, factors=factors))


def test_frozen_parameters_are_left_out_of_the_norm_that_clips() -> None:
    section = FinetuneOptimizerSection(learning_rate=1e-2, freeze=("embeddings", "layers.0-1"))
    assert_same(
        ours(section), torch_adamw(section, factors={}, trained=("layers.2", "pooler", "heads"))
    )


def test_one_optimizer_serves_a_mapped_sweep_over_schedules() -> None:
    section = FinetuneOptimizerSection(layer_decay=0.9, freeze=("layers.0",))
    transform = make_finetune_optimizer(section, AXES, depth=DEPTH)
    of_peaks = [section.model_copy(update={"learning_rate": peak}) for peak in (1e-2, 5e-2)]
    schedules = np.stack([make_schedule(each, total_steps=STEPS) for each in of_peaks])
    start = jax.tree.map(jnp.asarray, tree(0))
    grads = jax.tree.map(lambda *leaves: np.stack(leaves), *map(gradients, range(STEPS)))

    def under(schedule: jax.Array) -> Any:
        def advance(carry: Any, grads: Any) -> tuple[Any, None]:
            params, state = carry
            rate = learning_rate(schedule, schedule_count(state))
            updates, state = transform.update(grads, state, params, learning_rate=rate)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(advance, (start, transform.init(start)), grads)[0][0]

    mapped = jax.tree.map(np.asarray, jax.jit(jax.vmap(under))(schedules))
    for index, each in enumerate(of_peaks):
        alone = ours(each)[-1]
        found = parts(jax.tree.map(lambda leaf, i=index: leaf[i], mapped))
        for name, value in found.items():
            np.testing.assert_allclose(value, alone[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_the_rate_given_is_the_rate_applied() -> None:
    """Read off a direction of 1: no moments to speak of, no decay, no clipping."""
    section = FinetuneOptimizerSection(
        learning_rate=2e-3, warmup_fraction=0.25, beta1=0.0, weight_decay=0.0, clip_norm=None
    )
    transform = make_finetune_optimizer(section, AXES, depth=DEPTH)
    rates = learning_rate(make_schedule(section, total_steps=8), np.arange(9))
    params = jax.tree.map(jnp.asarray, tree(0))
    ones = jax.tree.map(jnp.ones_like, params)
    state, found = transform.init(params), []
    update = jax.jit(transform.update)
    for step, rate in enumerate(rates):
        assert int(schedule_count(state)) == step
        updates, state = update(ones, state, params, learning_rate=rate)
        found.append(-float(updates["task"]["bias"][0]))
    expected = [2e-3 * part for part in (0, 1 / 2, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0)]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(rates, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("freeze", "frozen", "bias_correction"),
    [
        ((), set(), True),
        (("embeddings", "layers.0"), {"embeddings", "layers.0"}, True),
        (("layers.1", "pooler"), {"layers.1", "pooler"}, False),
        (("encoder",), {"embeddings", "layers.0", "layers.1", "layers.2"}, False),
    ],
)
def test_a_frozen_unit_keeps_its_bits_and_moments_of_zero(
    freeze: tuple[str, ...], frozen: set[str], bias_correction: bool
) -> None:
    section = FinetuneOptimizerSection(
        freeze=freeze, bias_correction=bias_correction, weight_decay=0.1, warmup_fraction=0.0
    )
    transform = make_finetune_optimizer(section, AXES, depth=DEPTH)

    def with_negative_zeros(leaf: np.ndarray) -> np.ndarray:
        leaf.reshape(-1)[::2] = -0.0  # a sum with 0 loses its sign
        return leaf

    start = jax.tree.map(with_negative_zeros, tree(0))
    params, state = start, transform.init(start)
    update = jax.jit(transform.update)
    for step in range(2):
        updates, state = update(gradients(step), state, params, learning_rate=1e-4)
        params = optax.apply_updates(params, updates)
        for name, bits in parts(params).items():
            moved = bits.tobytes() != parts(start)[name].tobytes()
            assert moved is (PARTS[name][0] not in frozen), name
    (moments,) = (part for part in state if hasattr(part, "mu"))
    for each in (moments.mu, moments.nu):
        for name, value in parts(each).items():
            assert value.any() == value.all() == (PARTS[name][0] not in frozen), name


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("embedding", '; did you mean "embeddings"?'),
        ("layer.3", '; did you mean "layers.3"?'),
        ("layers.12", "to 11"),
        ("layers.5-4", "to 11"),
        ("layers.-1", ""),
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
    assert message.endswith(near)
