"""Our optimizers equal google-research/bert's AdamW, the paper's LAMB, and torch's AdamW."""

from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from bert_jax.optim.finetuning import frozen_units, make_finetune_optimizer, make_schedule
from bert_jax.optim.optimizer import make_optimizer, schedule_count
from bert_jax.optim.schedule import Schedule, learning_rate
from bert_jax.optim.sections import FinetuneOptimizerSection, OptimizerSection
from bert_jax.parallel.parameter_groups import ParameterGroup, ParameterGroups
from tests.project import refuses, says

DEPTH, STEPS = 3, 20
GROUPS = ParameterGroups(
    (
        ParameterGroup("encoder/embeddings", "embeddings"),
        ParameterGroup("encoder/layers", "layers"),
        ParameterGroup("pooler", "pooler"),
        ParameterGroup("task", "heads"),
    )
)
RATES = 1e-3 * np.arange(1, STEPS + 1) / STEPS
AXES: dict[str, Any] = {
    "encoder": {
        "embeddings": {"word": ("vocab", "embed"), "norm": {"scale": ("hidden",)}},
        "layers": {"kernel": ("layers", "embed", "mlp"), "bias": ("layers", "mlp")},
    },
    "pooler": {"kernel": ("embed", "pooled")},
    "task": {"kernel": ("embed", "classes"), "bias": ("classes",)},
}
# Parameter name, with unstacked layers → (unit, whether the parameter has weight decay).
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

History = list[dict[str, np.ndarray]]  # parameters by name, after each step


def tree(seed: int, scale: float = 1.0) -> dict[str, Any]:
    """Returns random parameters. The three stacked layers have different magnitudes."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray:
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    sizes = np.array([0.1, 1.0, 10.0], np.float32)[:, None, None]
    return {
        "encoder": {
            "embeddings": {"word": draw(7, 4), "norm": {"scale": draw(4)}},
            "layers": {"kernel": draw(DEPTH, 4, 5) * sizes, "bias": draw(DEPTH, 5)},
        },
        "pooler": {"kernel": draw(4, 4)},
        "task": {"kernel": draw(4, 2), "bias": draw(2)},
    }


def gradients(step: int) -> dict[str, Any]:
    """Returns gradients. Their norm is above the clipping norm in even steps, below in odd ones."""
    return tree(100 + step, scale=0.002 if step % 2 else 3.0)


def parts(values: Any) -> dict[str, np.ndarray]:
    """Returns a tree's leaves, with unstacked layers, by the names in `PARTS`."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(values):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        stacked = {f"{name}/{i}": row for i, row in enumerate(np.asarray(leaf))}
        found |= stacked if "/layers/" in name else {name: np.asarray(leaf)}
    assert found.keys() == PARTS.keys()
    return found


def run(transform: optax.GradientTransformationExtraArgs, schedule: Schedule | None) -> History:
    """Returns our parameters after each step. If `schedule` is None, uses the rates `RATES`."""
    params = jax.tree.map(jnp.asarray, tree(0))
    state, history = transform.init(params), []

    @jax.jit
    def advance(grads: Any, state: Any, params: Any, rate: Any) -> tuple[Any, Any]:
        rate = rate if schedule is None else learning_rate(schedule, schedule_count(state))
        updates, state = transform.update(grads, state, params, learning_rate=rate)
        return optax.apply_updates(params, updates), state

    for step in range(STEPS):
        params, state = advance(gradients(step), state, params, np.float32(RATES[step]))
        history.append(parts(params))
    return history


def pretrain(section: OptimizerSection) -> History:
    return run(make_optimizer(section, AXES), None)


def finetune(section: FinetuneOptimizerSection) -> History:
    transform = make_finetune_optimizer(section, AXES, groups=GROUPS, depth=DEPTH)
    return run(transform, make_schedule(section, total_steps=STEPS))


def clipped(step: int, clip: float | None, trained: Collection[str] = ALL) -> dict[str, np.ndarray]:
    """Returns gradients as tf.clip_by_global_norm does: g · clip / max(‖g‖, clip), in float64."""
    found = parts(gradients(step)).items()
    grads = {name: g.astype(np.float64) for name, g in found if PARTS[name][0] in trained}
    norm = np.sqrt(sum((g**2).sum() for g in grads.values()))
    return {
        name: g * (1.0 if clip is None else clip / max(norm, clip)) for name, g in grads.items()
    }


def transcribed(
    update_of: Callable[[str, np.ndarray, np.ndarray, np.ndarray, int], np.ndarray],
    clip: float | None = 1.0,
) -> History:
    """Returns the parameters after each step of param −= rate · update_of(…), in float64."""
    params = {name: p.astype(np.float64) for name, p in parts(tree(0)).items()}
    m, v = ({name: np.zeros_like(p) for name, p in params.items()} for _ in range(2))
    history = []
    for step in range(STEPS):
        for name, g in clipped(step, clip).items():
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.999 * v[name] + 0.001 * g * g
            update = update_of(name, m[name], v[name], params[name], step)
            params[name] = params[name] - RATES[step] * update
        history.append(dict(params))
    return history


def released_adamw(
    name: str, m: np.ndarray, v: np.ndarray, param: np.ndarray, step: int
) -> np.ndarray:
    """Update of `AdamWeightDecayOptimizer.apply_gradients`, without bias correction."""
    del step
    return m / (np.sqrt(v) + 1e-6) + (0.01 * param if PARTS[name][1] else 0.0)


def paper_lamb(name: str, m: np.ndarray, v: np.ndarray, param: np.ndarray, step: int) -> np.ndarray:
    """Update of LAMB: φ(‖x‖)/‖r + λx‖ · (r + λx) with r = m̂/(√v̂+ε) and φ(z) = z.

    Parameters without weight decay have the update r, as in the authors' code. Source: arXiv
    1904.00962, algorithm 2.
    """
    m_hat, v_hat = m / (1 - 0.9 ** (step + 1)), v / (1 - 0.999 ** (step + 1))
    update = m_hat / (np.sqrt(v_hat) + 1e-6)
    if not PARTS[name][1]:
        return update
    update = update + 0.01 * param
    return update * np.linalg.norm(param) / np.linalg.norm(update)


def torch_adamw(
    section: OptimizerSection | FinetuneOptimizerSection,
    rates: Any,
    *,
    factors: dict[str, float] | None = None,
    trained: Collection[str] = ALL,
) -> History:
    """Returns the history of `torch.optim.AdamW` in float64.

    Torch decays first, x·(1 − rate·λ), and then subtracts the Adam update. The order does not
    matter, because the Adam update does not depend on x.

    Args:
        section: our settings.
        rates: learning rate of each step.
        factors: factors of the learning rate, by unit.
        trained: units with gradients. Torch skips parameters without gradients.
    """
    start = parts(tree(0))
    tensors = {name: torch.tensor(p, dtype=torch.float64) for name, p in start.items()}
    groups = [
        {"params": [tensors[name]], "weight_decay": section.weight_decay if decays else 0.0}
        for name, (_, decays) in PARTS.items()
    ]
    betas = (section.beta1, section.beta2)
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=betas, eps=section.eps)
    history = []
    for step in range(STEPS):
        grads = clipped(step, section.clip_norm, trained)
        for (name, tensor), group in zip(tensors.items(), optimizer.param_groups, strict=True):
            tensor.grad = torch.from_numpy(grads[name]) if name in grads else None
            group["lr"] = float(rates[step]) * (factors or {}).get(PARTS[name][0], 1.0)
        optimizer.step()
        history.append({name: tensor.numpy().copy() for name, tensor in tensors.items()})
    return history


def assert_same(found: History, expected: History, *, rtol: float = 1e-5) -> None:
    for step, (one, other) in enumerate(zip(found, expected, strict=True)):
        for name in PARTS:
            np.testing.assert_allclose(
                one[name], other[name], rtol=rtol, atol=1e-6, err_msg=f"{name} after step {step}"
            )


@pytest.mark.parametrize("clip", [1.0, None])
def test_adamw_equals_the_releases(clip: float | None) -> None:
    assert_same(pretrain(OptimizerSection(clip_norm=clip)), transcribed(released_adamw, clip))


def test_the_corrected_variant_equals_torchs_adamw() -> None:
    section = OptimizerSection(bias_correction=True)
    assert_same(pretrain(section), torch_adamw(section, RATES))


def test_lamb_equals_the_papers_per_layer() -> None:
    section = OptimizerSection(name="lamb", bias_correction=True)
    assert_same(pretrain(section), transcribed(paper_lamb), rtol=2e-5)


def stable_adamw(section: OptimizerSection) -> History:
    """Returns the history of StableAdamW in float64, with the debiased β̂ of the paper.

    Source: arXiv 2304.13013, algorithm 2, with the names of its variables.
    """
    theta = {name: p.astype(np.float64) for name, p in parts(tree(0)).items()}
    v, u = ({name: np.zeros_like(p) for name, p in theta.items()} for _ in range(2))
    history = []
    for t in range(1, STEPS + 1):
        beta1, beta2 = (
            beta * (1 - beta ** (t - 1)) / (1 - beta**t) for beta in (section.beta1, section.beta2)
        )
        for name, g in clipped(t - 1, section.clip_norm).items():
            v[name] = beta1 * v[name] + (1 - beta1) * g
            u[name] = beta2 * u[name] + (1 - beta2) * g**2
            rms = np.sqrt(np.mean(g**2 / np.maximum(u[name], section.eps**2)))
            eta = RATES[t - 1] / max(1, rms)
            decay = section.weight_decay if PARTS[name][1] else 0.0
            step = v[name] / (np.sqrt(u[name]) + section.eps)
            theta[name] = theta[name] - eta * decay * theta[name] - eta * step
        history.append(dict(theta))
    return history


@pytest.mark.parametrize("clip", [1.0, None])
def test_stable_adamw_equals_the_papers_per_layer(clip: float | None) -> None:
    settings = {"beta2": 0.98, "bias_correction": True, "clip_norm": clip, "weight_decay": 0.1}
    section = OptimizerSection.model_validate({"name": "stable_adamw", **settings})
    found = pretrain(section)
    assert_same(found, stable_adamw(section), rtol=2e-5)
    # Without the gradients' large norms in even steps, nothing would be clipped.
    plain = pretrain(section.model_copy(update={"name": "adamw"}))
    assert not np.allclose(found[-1]["task/kernel"], plain[-1]["task/kernel"], rtol=1e-3)


@pytest.mark.parametrize("name", ["adamw", "lamb", "stable_adamw", "muon"])
def test_padding_of_the_vocabulary_changes_no_update(name: Any) -> None:
    """The padding has zeros as values and gradients, as in the table and in the decoder's bias."""
    corrected = name == "stable_adamw"
    section = OptimizerSection(name=name, bias_correction=corrected, weight_decay=0.1)
    axes = {"word": ("vocab", "embed"), "bias": ("vocab",)}
    rng, found = np.random.default_rng(0), {}
    draws = [rng.standard_normal((203, 9)).astype(np.float32) for _ in range(6)]
    for rows in (203, 256):
        padded = [np.pad(draw, ((0, rows - 203), (0, 0))) for draw in draws]
        params, *steps = ({"word": each[:, :8], "bias": each[:, 8]} for each in padded)
        optimizer = make_optimizer(section, axes, pieces=203)
        state = optimizer.init(params)
        for at, grads in enumerate(steps):
            # The second moments lag behind.
            grads = jax.tree.map(lambda each, at=at: 3.0**at * each, grads)
            updates, state = optimizer.update(grads, state, params, learning_rate=1e-2)
            params = optax.apply_updates(params, updates)
        found[rows] = params
    for path in axes:
        np.testing.assert_allclose(found[256][path][:203], found[203][path], atol=1e-6)
        assert not found[256][path][203:].any()


def newton_schulz(g: np.ndarray) -> np.ndarray:
    """Transcription of `zeropower_via_newtonschulz5` in KellerJordan/Muon."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.T if g.shape[0] > g.shape[1] else g
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if g.shape[0] > g.shape[1] else x


def test_muon_equals_the_authors_per_layer() -> None:
    """The layers' matrices have Muon's updates, all other parameters AdamW's."""
    buffers = {name: np.zeros((4, 5)) for name in PARTS if "layers/kernel" in name}
    sizes = []

    def update(name: str, m: np.ndarray, v: np.ndarray, param: np.ndarray, step: int) -> np.ndarray:
        if name not in buffers:
            return released_adamw(name, m, v, param, step)
        g = clipped(step, 1.0)[name]
        buffers[name] += 0.05 * (g - buffers[name])
        made = newton_schulz(g + 0.95 * (buffers[name] - g))
        sizes.append(np.sqrt(np.mean((0.2 * np.sqrt(5) * made) ** 2)))
        return 0.2 * np.sqrt(5) * made + 0.01 * param

    assert_same(pretrain(OptimizerSection(name="muon")), transcribed(update), rtol=2e-5)
    assert 0.15 < min(sizes) < max(sizes) < 0.25


def test_lamb_takes_a_plain_step_for_zero_parameters() -> None:
    """With a trust ratio of ‖x‖ = 0, the parameter would stay at zero forever."""
    section = OptimizerSection(name="lamb", weight_decay=0.0, clip_norm=None)
    transform = make_optimizer(section, {"kernel": ("embed", "mlp")})
    params = {"kernel": jnp.zeros((2, 3))}
    updates: Any
    updates, _ = transform.update(
        {"kernel": jnp.ones((2, 3))}, transform.init(params), params, learning_rate=1e-2
    )
    expected = -1e-2 * 0.1 / (np.sqrt(0.001) + 1e-6)
    np.testing.assert_allclose(updates["kernel"], expected, rtol=1e-5)


# Warm-up in two of twenty steps, then linear decay to 0.
LINE = [min(step / 2, (STEPS - step) / (STEPS - 2)) for step in range(STEPS)]


@pytest.mark.parametrize(
    ("settings", "factors", "trained"),
    [
        ({}, {}, ALL),
        (
            {"layer_decay": 0.5},
            {"layers.2": 0.5, "layers.1": 0.25, "layers.0": 0.125, "embeddings": 0.0625},
            ALL,
        ),
        # The gradient norm for clipping does not include frozen parameters.
        ({"freeze": ("embeddings", "layers.0-1")}, {}, ("layers.2", "pooler", "heads")),
    ],
)
def test_fine_tuning_equals_torch_with_layerwise_rates(
    settings: dict[str, Any], factors: dict[str, float], trained: Collection[str]
) -> None:
    section = FinetuneOptimizerSection(learning_rate=1e-2, **settings)
    rates = 1e-2 * np.array(LINE)
    found = finetune(section)
    expected = torch_adamw(section, rates, factors=factors, trained=trained)
    assert_same(found, expected)
    start = parts(tree(0))
    for name, value in found[-1].items():
        way, expected_way = value - start[name], expected[-1][name] - start[name]
        np.testing.assert_allclose(way, expected_way, rtol=1e-3, atol=1e-6, err_msg=name)


def test_one_optimizer_can_be_vmapped_over_schedules() -> None:
    section = FinetuneOptimizerSection(layer_decay=0.9, freeze=("layers.0",))
    transform = make_finetune_optimizer(section, AXES, groups=GROUPS, depth=DEPTH)
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
        alone = finetune(each)[-1]
        found = parts(jax.tree.map(lambda leaf, i=index: leaf[i], mapped))
        for name, value in found.items():
            np.testing.assert_allclose(value, alone[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("freeze", "frozen", "bias_correction"),
    [
        ((), set(), True),
        (("embeddings", "layers.0"), {"embeddings", "layers.0"}, True),
        (("layers.1", "pooler"), {"layers.1", "pooler"}, False),
        (("encoder",), {"embeddings", "layers.0", "layers.1", "layers.2"}, False),
    ],
)
def test_a_frozen_unit_keeps_its_bits_and_zero_moments(
    freeze: tuple[str, ...], frozen: set[str], bias_correction: bool
) -> None:
    section = FinetuneOptimizerSection(
        freeze=freeze, bias_correction=bias_correction, weight_decay=0.1, warmup_fraction=0.0
    )
    transform = make_finetune_optimizer(section, AXES, groups=GROUPS, depth=DEPTH)

    def with_negative_zeros(leaf: np.ndarray) -> np.ndarray:
        leaf.reshape(-1)[::2] = -0.0  # adding 0 would change -0.0 to 0.0
        return leaf

    start = jax.tree.map(with_negative_zeros, tree(0))
    params = start
    state: Any = transform.init(start)
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
    ("name", "hint"),
    [
        ("embedding", '; did you mean "embeddings"?'),
        ("layer.3", '; did you mean "layers.3"?'),
        ("layers.12", ""),
        ("layers.5-4", ""),
        ("layers.-1", '; did you mean "layers.1"?'),
        ("", ""),
    ],
)
def test_a_wrong_name_lists_the_right_ones(name: str, hint: str) -> None:
    place = "optimizer.freeze"
    with refuses("optimizer.freeze", place=place, found=name, last=11, hint=hint) as caught:
        frozen_units((name,), depth=12)
    says(caught.value, allowed=["embeddings", "encoder", "pooler"])
