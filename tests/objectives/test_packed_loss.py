"""A packed batch has the loss, metrics and gradients of the unpacked batch."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.data.dataset.reader import Example
from bert_jax.data.loader.packing import PackingPlan
from bert_jax.data.rng import stream
from bert_jax.data.rows.masking import MaskingSection, TokenMasker
from bert_jax.data.rows.masking_transform import MaskingTransform
from bert_jax.objectives.masked_language_model import MaskedLanguageModel
from bert_jax.text import SpecialIds
from tests.model.parts import fresh_params, model_of
from tests.support import loss_of, relative_error, small_task

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
SEQ_LENGTH = 48
LENGTHS = (5, 48, 9, 21, 30, 7, 12, 17, 48, 33, 6, 11, 40)

Batch = dict[str, np.ndarray]


def examples() -> list[Example]:
    """Returns examples. Every third example has one span, so its NSP label has weight 0."""
    rng, made = np.random.default_rng(0), []
    for index, length in enumerate(LENGTHS):
        ids = rng.integers(5, 250, length).astype(np.uint16)
        ids[0], ids[length // 2], ids[-1] = SPECIAL.cls, SPECIAL.sep, SPECIAL.sep
        first = length if index % 3 == 0 else length // 2 + 1
        made.append(Example(ids, first, index % 2 if first < length else 0))
    return made


def streams() -> list[np.random.Generator]:
    return [stream(1, "mask", index) for index in range(len(LENGTHS))]


@functools.cache
def row_maker() -> MaskingTransform:
    masking = MaskingSection()
    predictions = masking.predictions(SEQ_LENGTH)
    masker = TokenMasker(masking, predictions, SPECIAL, 250, np.zeros(250, bool))
    return MaskingTransform(SEQ_LENGTH, masker)


def unpacked_batch() -> Batch:
    return row_maker().batch([[one] for one in examples()], [[one] for one in streams()])


def packed_batch() -> Batch:
    made, drawn, make = examples(), streams(), dataclasses.replace(row_maker(), max_examples=4)
    plan = PackingPlan(np.bincount(LENGTHS), capacity=SEQ_LENGTH, max_examples=4)
    slots = [plan.examples(row) for row in range(plan.rows)]
    rows = [
        [int(np.flatnonzero(np.equal(LENGTHS, slot.length))[slot.rank]) for slot in of_row]
        for of_row in slots
    ]
    assert len(rows) < len(LENGTHS) / 1.5
    batch = make.batch(
        [[made[index] for index in row] for row in rows],
        [[drawn[index] for index in row] for row in rows],
    )
    # Add an empty row, which must not change the loss.
    return {name: np.pad(a, [(0, 1)] + [(0, 0)] * (a.ndim - 1)) for name, a in batch.items()}


@functools.cache
def task() -> MaskedLanguageModel:
    return small_task(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


@functools.cache
def params() -> Any:
    """Returns large parameters: with small parameters, attention would be nearly uniform."""
    rng = np.random.default_rng(3)
    fresh = jax.device_get(fresh_params(task()))
    return jax.tree.map(lambda leaf: leaf + rng.normal(0, 0.1, leaf.shape).astype("f4"), fresh)


@jax.jit
@functools.partial(jax.value_and_grad, has_aux=True)
def loss_and_gradient(params: Any, batch: Any) -> Any:
    return loss_of(task(), model_of(task(), params), batch)


def test_loss_and_gradients_equal_the_unpacked_batchs() -> None:
    (expected, metrics), gradient = loss_and_gradient(params(), unpacked_batch())
    (found, packed_metrics), packed_gradient = loss_and_gradient(params(), packed_batch())
    assert float(found) == pytest.approx(float(expected), rel=1e-5)
    assert set(metrics) == {"mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"}
    for name, (total, count) in metrics.items():
        assert float(packed_metrics[name][0]) == pytest.approx(float(total), rel=1e-5), name
        assert float(packed_metrics[name][1]) == float(count) > 0, name
    leaves = jax.tree_util.tree_leaves_with_path(gradient)
    for (path, leaf), other in zip(leaves, jax.tree.leaves(packed_gradient), strict=True):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if "key/bias" in name:  # softmax cancels this bias, so its gradient is rounding error
            assert np.abs(other).max() < 1e-5
        else:
            assert relative_error(other, leaf) < 1e-5, name


@pytest.mark.parametrize("lost", ["segment_ids", "position_ids", "cls_positions"])
def test_each_separation_of_examples_is_needed(lost: str) -> None:
    (expected, _), _ = loss_and_gradient(params(), unpacked_batch())
    batch = packed_batch()
    whole_row = {
        "segment_ids": np.minimum(batch["segment_ids"], 1),
        "position_ids": np.broadcast_to(np.arange(SEQ_LENGTH), batch["position_ids"].shape),
        "cls_positions": np.zeros_like(batch["cls_positions"]),
    }
    (found, _), _ = loss_and_gradient(params(), batch | {lost: whole_row[lost]})
    assert abs(float(found) - float(expected)) > 1e-3
