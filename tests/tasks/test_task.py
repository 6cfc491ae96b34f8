"""The losses of fine-tuning, beside PyTorch's."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from flax.traverse_util import flatten_dict
from torch.nn import functional

from bert_jax.model.bert import Bert
from bert_jax.model.config import Execution, HeadsSection
from bert_jax.optim.finetuning import frozen_parameters
from bert_jax.optim.sections import FinetuneOptimizerSection
from bert_jax.tasks.batches import WEIGHTS
from bert_jax.tasks.family import NO_LABEL
from bert_jax.tasks.task import FinetuneTask, logits
from bert_jax.train.state import define_model
from tests.support import small_architecture

ROWS, LENGTH, LABELS = 6, 12, ("a", "b", "c")
NO_PRETRAINING = {"mlm": False, "next_sentence": False}


def task_of(**heads: Any) -> FinetuneTask:
    return FinetuneTask(
        architecture=small_architecture(initializer_range=0.2),
        execution=Execution(dtype="float32"),
        heads=HeadsSection.model_validate(NO_PRETRAINING | heads),
    )


def classification(problem: str, *, labels: tuple[str, ...] = LABELS) -> FinetuneTask:
    return task_of(task="sequence_classification", labels=labels, problem=problem)


def batch_of(*, choices: int | None = None, **targets: Any) -> dict[str, jax.Array]:
    """Rows of unequal length, the last of which is filler."""
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
    """Parameters of any kind, without the program that would draw them."""
    rng = np.random.default_rng(3)

    def draw(path: Any, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        mean = float(path[-1].key == "scale")  # of LayerNorm
        return rng.normal(mean, 0.2, leaf.shape).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, define_model(task.build).params)


def found_and_logits(task: FinetuneTask, batch: dict[str, jax.Array]) -> tuple[float, torch.Tensor]:
    graphdef = define_model(task.build).graphdef

    @jax.jit
    def compute(params: Any) -> Any:
        model = nnx.merge(graphdef, params)
        found = task.loss(model, batch, weights=task.weights(batch), dropout_key=None)
        return *found, logits(model, batch, dropout_key=None)

    value, metrics, scores = compute(random_params(task))
    total, count = metrics["task_loss"]
    assert float(total) / float(count) == pytest.approx(float(value), rel=1e-6)
    return float(value), torch.tensor(np.asarray(scores))[:-1]


def test_classification_is_the_mean_cross_entropy_of_the_rows_that_count() -> None:
    labels = np.asarray([0, 2, 1, 1, 0, 2], np.int32)
    found, scores = found_and_logits(classification("single_label"), batch_of(label=labels))
    expected = functional.cross_entropy(scores, torch.tensor(labels[:-1]).long())
    assert found == pytest.approx(float(expected), rel=1e-5)


def test_class_weights_are_weights_of_the_mean() -> None:
    labels = np.asarray([0, 2, 1, 1, 0, 2], np.int32)
    weights = (0.5, 2.0, 3.0)
    task = dataclasses.replace(classification("single_label"), class_weights=weights)
    found, scores = found_and_logits(task, batch_of(label=labels))
    expected = functional.cross_entropy(
        scores, torch.tensor(labels[:-1]).long(), weight=torch.tensor(weights)
    )
    assert found == pytest.approx(float(expected), rel=1e-5)


def test_several_labels_are_the_mean_of_their_own_cross_entropies() -> None:
    labels = np.random.default_rng(1).integers(0, 2, (ROWS, 3)).astype(np.float32)
    found, scores = found_and_logits(classification("multi_label"), batch_of(label=labels))
    expected = functional.binary_cross_entropy_with_logits(scores, torch.tensor(labels[:-1]))
    assert found == pytest.approx(float(expected), rel=1e-5)


def test_regression_compares_each_row_with_its_own_label_only() -> None:
    labels = np.linspace(0, 5, ROWS).astype(np.float32)
    task = classification("regression", labels=("similarity",))
    found, scores = found_and_logits(task, batch_of(label=labels))
    expected = functional.mse_loss(scores[:, 0], torch.tensor(labels[:-1]))
    broadcast = torch.square(scores - torch.tensor(labels[:-1])).mean()  # [n, 1] against [n]
    assert found == pytest.approx(float(expected), rel=1e-5)
    assert found != pytest.approx(float(broadcast), rel=1e-2)


def test_token_classification_is_the_mean_over_labelled_pieces() -> None:
    labels = np.random.default_rng(2).integers(-1, 3, (ROWS, LENGTH)).astype(np.int32)
    task = task_of(task="token_classification", labels=LABELS, pooler=False)
    found, scores = found_and_logits(task, batch_of(labels=labels))
    expected = functional.cross_entropy(
        scores.reshape(-1, 3), torch.tensor(labels[:-1]).long().reshape(-1), ignore_index=NO_LABEL
    )
    assert found == pytest.approx(float(expected), rel=1e-5)


def test_an_answer_is_the_mean_of_its_two_ends_over_what_is_no_padding() -> None:
    starts = np.asarray([1, 2, 0, 3, 1, 0], np.int32)
    ends = np.asarray([2, 3, 0, 3, 2, 0], np.int32)
    batch = batch_of(start=starts, end=ends)
    found, scores = found_and_logits(task_of(task="question_answering", pooler=False), batch)
    padding = torch.tensor(np.asarray(batch["segment_ids"])[:-1] == 0)
    scores = scores.masked_fill(padding[..., None], -1e9)
    both = [
        functional.cross_entropy(scores[..., side], torch.tensor(at[:-1]).long())
        for side, at in enumerate((starts, ends))
    ]
    assert found == pytest.approx(float(sum(both)) / 2, rel=1e-5)


def test_a_choice_is_a_class_among_its_own_rows() -> None:
    labels = np.asarray([0, 3, 1, 2, 0, 0], np.int32)
    found, scores = found_and_logits(
        task_of(task="multiple_choice"), batch_of(choices=4, label=labels)
    )
    assert scores.shape == (ROWS - 1, 4)
    expected = functional.cross_entropy(scores, torch.tensor(labels[:-1]).long())
    assert found == pytest.approx(float(expected), rel=1e-5)


def test_microbatches_add_up_to_the_batch() -> None:
    labels = np.random.default_rng(2).integers(-1, 3, (ROWS, LENGTH)).astype(np.int32)
    task = task_of(task="token_classification", labels=LABELS, pooler=False)
    batch = batch_of(labels=labels)
    graphdef = define_model(task.build).graphdef

    @jax.jit
    def losses(params: Any) -> list[jax.Array]:
        model, weights = nnx.merge(graphdef, params), task.weights(batch)
        return [
            task.loss(
                model,
                {name: array[rows] for name, array in batch.items()},
                weights=weights,
                dropout_key=None,
            )[0]
            for rows in (slice(0, ROWS), slice(0, 2), slice(2, ROWS))
        ]

    whole, *parts = losses(random_params(task))
    np.testing.assert_allclose(sum(parts), whole, rtol=1e-6)


def test_the_heads_own_dropout_is_drawn_in_training_alone() -> None:
    task = classification("single_label")
    task = dataclasses.replace(
        task,
        architecture=small_architecture(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
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


def test_what_is_frozen_has_no_gradient_and_all_else_the_same_one() -> None:
    task = classification("single_label")
    definition = define_model(task.build)
    section = FinetuneOptimizerSection(freeze=("embeddings",))
    frozen = flatten_dict(frozen_parameters(section, definition.axes, depth=2), sep="/")
    batch = batch_of(label=np.zeros(ROWS, np.int32))
    params = random_params(task)

    def gradients(of: FinetuneTask) -> Any:
        def loss(values: Any) -> jax.Array:
            model = nnx.merge(definition.graphdef, values)
            assert isinstance(model, Bert)
            return of.loss(model, batch, weights=of.weights(batch), dropout_key=None)[0]

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
