"""AdamW as released, its corrected variant and LAMB, each against an independent computation."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from bert_jax.optim.optimizer import make_optimizer
from bert_jax.optim.sections import OptimizerSection

STEPS = 10
RATES = [1e-3 * (step + 1) / STEPS for step in range(STEPS)]
DECAYS = {"dense/kernel": True, "dense/bias": False, "norm/scale": False, "stacked/kernel": True}
AXES: dict[str, Any] = {
    "dense": {"kernel": ("embed", "mlp"), "bias": ("mlp",)},
    "norm": {"scale": ("hidden",)},
    "stacked": {"kernel": ("layers", "embed", "mlp")},
}


def tree(rng: np.random.Generator, scale: float = 1.0) -> dict[str, Any]:
    """A dense layer, a LayerNorm scale, and a kernel of three stacked layers of unlike size."""

    def draw(*shape: int) -> np.ndarray:
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    layers = np.array([0.1, 1.0, 10.0], np.float32)[:, None, None]
    return {
        "dense": {"kernel": draw(5, 4), "bias": draw(4)},
        "norm": {"scale": draw(6)},
        "stacked": {"kernel": draw(3, 4, 5) * layers},
    }


def flat(values: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(values)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf, np.float64)
        for path, leaf in leaves
    }


def gradients(step: int) -> dict[str, Any]:
    """Now above, now below the norm that is clipped at."""
    return tree(np.random.default_rng(100 + step), scale=0.02 if step % 2 else 3.0)


def ours(section: OptimizerSection) -> list[dict[str, np.ndarray]]:
    """Parameters after every step."""
    transform = make_optimizer(section, AXES)
    params = jax.tree.map(jnp.asarray, tree(np.random.default_rng(0)))
    state, history = transform.init(params), []
    for step in range(STEPS):
        updates, state = transform.update(gradients(step), state, params, learning_rate=RATES[step])
        params = jax.tree.map(jnp.add, params, updates)
        history.append(flat(params))
    return history


def clipped(step: int, clip: float | None) -> dict[str, np.ndarray]:
    """tf.clip_by_global_norm: g · clip / max(‖g‖, clip)."""
    grads = flat(gradients(step))
    norm = np.sqrt(sum((g**2).sum() for g in grads.values()))
    factor = 1.0 if clip is None else clip / max(norm, clip)
    return {name: g * factor for name, g in grads.items()}


def released_adamw(clip: float | None) -> list[dict[str, np.ndarray]]:
    """`AdamWeightDecayOptimizer.apply_gradients`, in float64.

    next_m = 0.9 m + 0.1 g; next_v = 0.999 v + 0.001 g²; update = next_m / (√next_v + 1e-6),
    plus 0.01 · param where it decays; param −= rate · update. No bias correction.
    """
    params = flat(tree(np.random.default_rng(0)))
    m = {name: np.zeros_like(p) for name, p in params.items()}
    v = {name: np.zeros_like(p) for name, p in params.items()}
    history = []
    for step in range(STEPS):
        for name, g in clipped(step, clip).items():
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.999 * v[name] + 0.001 * g * g
            update = m[name] / (np.sqrt(v[name]) + 1e-6)
            if DECAYS[name]:
                update = update + 0.01 * params[name]
            params[name] = params[name] - RATES[step] * update
        history.append(dict(params))
    return history


def paper_lamb() -> list[dict[str, np.ndarray]]:
    """Algorithm 2 of arXiv 1904.00962, in float64, with φ(z) = z; every layer on its own.

    m̂ = m/(1−β1ᵗ), v̂ = v/(1−β2ᵗ), r = m̂/(√v̂+ε), x −= η · φ(‖x‖)/‖r + λx‖ · (r + λx). What does
    not decay takes a plain step, as in the authors' release.
    """
    params = flat(tree(np.random.default_rng(0)))
    stacked = params.pop("stacked/kernel")
    params |= {f"stacked/kernel/{i}": layer for i, layer in enumerate(stacked)}
    m = {name: np.zeros_like(p) for name, p in params.items()}
    v = {name: np.zeros_like(p) for name, p in params.items()}
    history = []
    for step in range(STEPS):
        grads = clipped(step, 1.0)
        grads |= {f"stacked/kernel/{i}": g for i, g in enumerate(grads.pop("stacked/kernel"))}
        for name, g in grads.items():
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.999 * v[name] + 0.001 * g * g
            m_hat, v_hat = m[name] / (1 - 0.9 ** (step + 1)), v[name] / (1 - 0.999 ** (step + 1))
            update, ratio = m_hat / (np.sqrt(v_hat) + 1e-6), 1.0
            if name.endswith("bias") or name.endswith("scale"):
                pass
            else:
                update = update + 0.01 * params[name]
                ratio = np.linalg.norm(params[name]) / np.linalg.norm(update)
            params[name] = params[name] - RATES[step] * ratio * update
        layers = np.stack([params[f"stacked/kernel/{i}"] for i in range(3)])
        kept = {name: p for name, p in params.items() if not name.startswith("stacked")}
        history.append(kept | {"stacked/kernel": layers})
    return history


def assert_same(
    found: list[dict[str, np.ndarray]], expected: list[dict[str, np.ndarray]], *, rtol: float
) -> None:
    assert len(found) == len(expected) == STEPS
    for step, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_allclose(
                one[name], other[name], rtol=rtol, atol=1e-6, err_msg=f"{name} after step {step}"
            )


@pytest.mark.parametrize("clip", [1.0, None])
def test_adamw_is_the_releases_for_ten_steps(clip: float | None) -> None:
    assert_same(ours(OptimizerSection(clip_norm=clip)), released_adamw(clip), rtol=1e-5)


def test_the_corrected_variant_is_torchs_adamw() -> None:
    """Torch decays first, x·(1 − rate·λ), and takes its Adam step from there: the same sum, as the
    step does not look at x. Its ε stands beside √v̂ as ours does. It clips with
    clip/(norm + 1e-6), which differs here by a millionth; so both go without clipping."""
    section = OptimizerSection(bias_correction=True, clip_norm=None)
    start = tree(np.random.default_rng(0))
    tensors = {
        name: torch.tensor(value, dtype=torch.float64) for name, value in flat(start).items()
    }
    groups = [
        {"params": [t for n, t in tensors.items() if DECAYS[n] is decays], "weight_decay": weight}
        for decays, weight in ((True, 0.01), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATES[0], betas=(0.9, 0.999), eps=1e-6)
    history = []
    for step in range(STEPS):
        for name, gradient in flat(gradients(step)).items():
            tensors[name].grad = torch.from_numpy(gradient)
        for group in optimizer.param_groups:
            group["lr"] = RATES[step]
        optimizer.step()
        history.append({name: tensor.numpy().copy() for name, tensor in tensors.items()})
    assert_same(ours(section), history, rtol=1e-5)


def test_lamb_is_the_papers_with_the_layers_of_a_stack_kept_apart() -> None:
    assert_same(ours(OptimizerSection(name="lamb", bias_correction=True)), paper_lamb(), rtol=2e-5)


def test_lamb_leaves_a_parameter_of_zeros_its_plain_step() -> None:
    """‖x‖ = 0 would otherwise keep it at zero for ever."""
    axes = {"kernel": ("embed", "mlp")}
    section = OptimizerSection(name="lamb", weight_decay=0.0, clip_norm=None)
    transform = make_optimizer(section, axes)
    params = {"kernel": jnp.zeros((2, 3))}
    updates, _ = transform.update(
        {"kernel": jnp.ones((2, 3))}, transform.init(params), params, learning_rate=1e-2
    )
    expected = -1e-2 * 0.1 / (np.sqrt(0.001) + 1e-6)
    np.testing.assert_allclose(updates["kernel"], expected, rtol=1e-5)
