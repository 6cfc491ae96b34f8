"""Fine-tuning losses equal the losses of PyTorch."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from flax.traverse_util import flatten_dict
from torch.nn import functional

from bert_jax.encoders.bert.model import Bert
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.optim.finetuning import frozen_parameters
from bert_jax.optim.sections import FinetuneOptimizerSection
from bert_jax.tasks.batches import WEIGHTS
from bert_jax.tasks.family import NO_LABEL
from bert_jax.tasks.task import FinetuneTask, logits
from bert_jax.train.state import define_model
from tests.support import loss_of, small_architecture

ROWS, LENGTH, LABELS = 6, 12, ("a", "b", "c")
NO_PRETRAINING = {"mlm": False, "next_sentence": False}


def task_of(**heads: Any) -> FinetuneTask:
    return FinetuneTask(
        architecture=small_architecture(initializer_range=0.2, num_hidden_layers=1),
        execution=Execution(dtype="float32"),
        heads=HeadsSection.model_validate(NO_PRETRAINING | heads),
    )


def classification(problem: str, *, labels: tuple[str, ...] = LABELS) -> FinetuneTask:
    return task_of(task="sequence_classification", labels=labels, problem=problem)


def batch_of(*, choices: int | None = None, **targets: Any) -> dict[str, jax.Array]:
    """Returns a batch of rows with different lengths. The last row is padding."""
    rng = np.random.default_rng(0)
    rows = ROWS * (choices or 1)
    inside = np.arange(LENGTH) < rng.integers(4, LENGTH + 1, rows)[:, None]
    inputs = {
        "input_ids": np.where(inside, rng.integers(5, 250, (rows, LENGTH)), 0),
        "token_type_ids": inside & (np.arange(LENGTH) > 3),
        "segment_ids": inside,
    }
    shape = (ROWS, LENGTH) if choices is None else (ROWS, choices, LENGTH)
    weights = np.ones(ROWS, np.float32)
    weights[-1] = 0
    arrays = {name: value.astype(np.int32).reshape(shape) for name, value in inputs.items()}
    return {
        name: jnp.asarray(value) for name, value in (arrays | {WEIGHTS: weights} | targets).items()
    }


def random_params(task: FinetuneTask) -> Any:
    """Returns random parameters without compiling an initialiser."""
    rng = np.random.default_rng(3)

    def draw(path: Any, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        mean = float(path[-1].key == "scale")  # draw LayerNorm scales around 1
        return rng.normal(mean, 0.2, leaf.shape).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, define_model(task.build).params)


Expected = Callable[[torch.Tensor, Callable[[str], torch.Tensor]], torch.Tensor]


def class_loss(scores: torch.Tensor, target: Callable[[str], torch.Tensor]) -> torch.Tensor:
    return functional.cross_entropy(scores, target("label").long())


def token_loss(scores: torch.Tensor, target: Callable[[str], torch.Tensor]) -> torch.Tensor:
    labels = target("labels").long().reshape(-1)
    return functional.cross_entropy(scores.reshape(-1, 3), labels, ignore_index=NO_LABEL)


def answer_loss(scores: torch.Tensor, target: Callable[[str], torch.Tensor]) -> torch.Tensor:
    """Returns the mean loss of starts and ends, without padding pieces."""
    scores = scores.masked_fill((target("segment_ids") == 0)[..., None], -1e9)
    ends = [
        functional.cross_entropy(scores[..., side], target(name).long())
        for side, name in enumerate(("start", "end"))
    ]
    return torch.stack(ends).mean()


RNG = np.random.default_rng(1)
ONE_OF_THREE = np.asarray([0, 2, 1, 1, 0, 2], np.int32)
PIECES = RNG.integers(-1, 3, (ROWS, LENGTH)).astype(np.int32)
WEIGHTED = dataclasses.replace(classification("single_label"), class_weights=(0.5, 2.0, 3.0))
TOKENS = task_of(task="token_classification", labels=LABELS, pooler=False)

LOSSES: dict[str, tuple[FinetuneTask, dict[str, Any], Expected]] = {
    "one label": (classification("single_label"), {"label": ONE_OF_THREE}, class_loss),
    "class weights": (
        WEIGHTED,
        {"label": ONE_OF_THREE},
        lambda scores, target: functional.cross_entropy(
            scores, target("label").long(), weight=torch.tensor(WEIGHTED.class_weights)
        ),
    ),
    "several labels": (
        classification("multi_label"),
        {"label": RNG.integers(0, 2, (ROWS, 3)).astype(np.float32)},
        lambda scores, target: functional.binary_cross_entropy_with_logits(scores, target("label")),
    ),
    "a number": (  # catches [n, 1] − [n], which broadcasts
        classification("regression", labels=("similarity",)),
        {"label": np.linspace(0, 5, ROWS).astype(np.float32)},
        lambda scores, target: functional.mse_loss(scores[:, 0], target("label")),
    ),
    "tokens": (TOKENS, {"labels": PIECES}, token_loss),
    "an answer": (
        task_of(task="question_answering", pooler=False),
        {
            "start": np.asarray([1, 2, 0, 3, 1, 0], np.int32),
            "end": np.asarray([2, 3, 0, 3, 2, 0], np.int32),
        },
        answer_loss,
    ),
    "a choice": (
        task_of(task="multiple_choice"),
        {"choices": 4, "label": np.asarray([0, 3, 1, 2, 0, 0], np.int32)},
        class_loss,
    ),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_a_loss_is_pytorchs_mean_over_real_rows(kind: str) -> None:
    task, values, expected = LOSSES[kind]
    batch = batch_of(**values)
    graphdef = define_model(task.build).graphdef

    @jax.jit
    def compute(params: Any) -> Any:
        model = nnx.merge(graphdef, params)
        found = loss_of(task, model, batch)
        return *found, logits(model, batch, dropout_key=None)

    value, metrics, scores = compute(random_params(task))
    total, count = metrics["task_loss"]
    assert float(total) / float(count) == pytest.approx(float(value), rel=1e-6)
    found = torch.tensor(np.asarray(scores))[:-1]  # the last row is padding
    wanted = expected(found, lambda name: torch.tensor(np.asarray(batch[name]))[:-1])
    assert float(value) == pytest.approx(float(wanted), rel=1e-5)


def test_missing_choices_have_no_probability() -> None:
    task = task_of(task="multiple_choice")
    label = np.asarray([0, 2, 1, 2, 0, 0], np.int32)
    full = batch_of(choices=4, label=label)
    fewer = full | {name: full[name].at[:, 3].set(0) for name in ("input_ids", "segment_ids")}
    graphdef = define_model(task.build).graphdef

    @jax.jit
    def compute(params: Any, batch: Any) -> Any:
        model = nnx.merge(graphdef, params)
        return loss_of(task, model, batch)[0], logits(model, batch, dropout_key=None)

    params = random_params(task)
    _, scores = compute(params, full)
    loss, found = compute(params, fewer)
    np.testing.assert_allclose(found[:, :3], scores[:, :3], rtol=1e-6)
    wanted = functional.cross_entropy(
        torch.tensor(np.asarray(scores))[:-1, :3], torch.tensor(label).long()[:-1]
    )
    assert float(loss) == pytest.approx(float(wanted), rel=1e-5)


def test_microbatch_losses_add_up_to_the_batch() -> None:
    task, batch = TOKENS, batch_of(labels=PIECES)
    graphdef = define_model(task.build).graphdef

    @jax.jit
    def losses(params: Any) -> list[jax.Array]:
        model = nnx.merge(graphdef, params)
        return [
            loss_of(task, model, {name: batch[name][rows] for name in batch}, whole=batch)[0]
            for rows in (slice(0, ROWS), slice(0, 2), slice(2, ROWS))
        ]

    whole, *parts = losses(random_params(task))
    np.testing.assert_allclose(sum(parts), whole, rtol=1e-6)


def test_the_heads_dropout_applies_only_in_training() -> None:
    task = classification("single_label")
    task = dataclasses.replace(
        task,
        architecture=small_architecture(
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_hidden_layers=1
        ),
        heads=task.heads.model_copy(update={"task_dropout": 0.5}),
    )
    batch = batch_of(label=np.zeros(ROWS, np.int32))
    graphdef = define_model(task.build).graphdef

    @jax.jit
    def compute(params: Any, key: Any) -> jax.Array:
        return logits(nnx.merge(graphdef, params), batch, dropout_key=key)

    params = random_params(task)
    np.testing.assert_array_equal(*(compute(params, None) for _ in range(2)))
    trained = [compute(params, jax.random.key(seed)) for seed in range(2)]
    assert not np.allclose(trained[0], trained[1])


def test_freezing_removes_only_frozen_gradients() -> None:
    task = classification("single_label")
    definition = define_model(task.build)
    section = FinetuneOptimizerSection(freeze=("embeddings",))
    frozen = flatten_dict(
        frozen_parameters(section, definition.axes, groups=definition.groups, depth=1), sep="/"
    )
    batch = batch_of(label=np.zeros(ROWS, np.int32))
    params = random_params(task)

    def gradients(of: FinetuneTask) -> Any:
        def loss(values: Any) -> jax.Array:
            model = nnx.merge(definition.graphdef, values)
            assert isinstance(model, Bert)
            return loss_of(of, model, batch)[0]

        return jax.jit(jax.grad(loss))(params)

    free = gradients(task)
    names = frozenset(name for name, always in frozen.items() if always)
    held = gradients(dataclasses.replace(task, frozen=names))
    for leaf in jax.tree.leaves(held["encoder"]["embeddings"]):
        assert not leaf.any()
    assert any(leaf.any() for leaf in jax.tree.leaves(free["encoder"]["embeddings"]))
    jax.tree.map(
        np.testing.assert_array_equal, held["encoder"]["layers"], free["encoder"]["layers"]
    )
