"""Packed rows with every objective: losses and gradients of single rows."""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from bert_jax.data.dataset.reader import Example
from bert_jax.data.loader.packing import PackingPlan
from bert_jax.data.rng import stream
from bert_jax.data.rows.masking import MaskingSection, TokenMasker
from bert_jax.data.rows.masking_transform import MaskingTransform
from bert_jax.objectives.registry import OBJECTIVES
from bert_jax.text import SpecialIds
from tests.model.parts import fresh_params, model_of
from tests.objectives.cases import CASES, on_encoders
from tests.objectives.runs import variant_of
from tests.objectives.teachers import frozen_params
from tests.support import loss_of, relative_error
from tests.train.harness import Setting, mesh_of

pytestmark = pytest.mark.slow  # one process runs the whole file, so it starts early

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
SEQ_LENGTH = 48
LENGTHS = (5, 48, 9, 21, 30, 7, 12, 17, 48, 33, 6, 11, 40)

Batch = dict[str, np.ndarray]


def examples() -> list[Example]:
    """Returns examples. Every third example has one span, so its pair label has weight 0."""
    rng, made = np.random.default_rng(0), []
    for index, length in enumerate(LENGTHS):
        ids = rng.integers(5, 250, length).astype(np.uint16)
        ids[0], ids[length // 2], ids[-1] = SPECIAL.cls, SPECIAL.sep, SPECIAL.sep
        first = length if index % 3 == 0 else length // 2 + 1
        made.append(Example(ids, first, index % 2 if first < length else 0))
    return made


def streams() -> list[np.random.Generator]:
    return [stream(1, "mask", index) for index in range(len(LENGTHS))]


def row_maker(max_examples: int, pairs: bool) -> MaskingTransform:
    masking = MaskingSection()
    predictions = masking.predictions(SEQ_LENGTH)
    masker = TokenMasker(masking, predictions, SPECIAL, 250, np.zeros(250, bool))
    return MaskingTransform(SEQ_LENGTH, masker, max_examples=max_examples, pairs=pairs)


def unpacked_batch(*, pairs: bool = True) -> Batch:
    return row_maker(1, pairs).batch([[one] for one in examples()], [[one] for one in streams()])


def packed_batch(*, pairs: bool = True) -> Batch:
    made, drawn = examples(), streams()
    plan = PackingPlan(np.bincount(LENGTHS), capacity=SEQ_LENGTH, max_examples=4)
    slots = [plan.examples(row) for row in range(plan.rows)]
    rows = [
        [int(np.flatnonzero(np.equal(LENGTHS, slot.length))[slot.rank]) for slot in of_row]
        for of_row in slots
    ]
    assert len(rows) < len(LENGTHS) / 1.5
    batch = row_maker(4, pairs).batch(
        [[made[index] for index in row] for row in rows],
        [[drawn[index] for index in row] for row in rows],
    )
    # Add an empty row, which must not change the loss.
    return {name: np.pad(a, [(0, 1)] + [(0, 0)] * (a.ndim - 1)) for name, a in batch.items()}


class Losses(NamedTuple):
    """The loss of a batch, its metrics and its gradient."""

    loss: float
    metrics: dict[str, tuple[float, float]]
    gradient: Any


@functools.cache
def loss_function(setting: Setting) -> Any:
    """Returns the function from batches to `Losses`."""
    task = setting.task
    rng, fresh = np.random.default_rng(3), jax.device_get(fresh_params(task))
    # Large parameters: with small parameters, attention would be nearly uniform.
    params = jax.tree.map(lambda leaf: leaf + rng.normal(0, 0.1, leaf.shape).astype("f4"), fresh)

    frozen = frozen_params(task, mesh_of((1, 1, 1)))

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def compute(params: Any, batch: Any) -> Any:
        return loss_of(task, model_of(task, params), batch, frozen=frozen)

    def losses(batch: Batch) -> Losses:
        (loss, metrics), gradient = jax.device_get(compute(params, batch))
        return Losses(float(loss), metrics, gradient)

    return losses


@on_encoders(CASES)
@pytest.mark.usefixtures("greedy")
def test_packed_rows_have_the_loss_and_gradients_of_single_rows(
    objective: str, encoder: str
) -> None:
    losses = loss_function(Setting(objective=objective, encoder=encoder))
    pairs = OBJECTIVES[variant_of(objective).kind].heads.next_sentence
    expected, found = losses(unpacked_batch(pairs=pairs)), losses(packed_batch(pairs=pairs))
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    for name, (total, count) in expected.metrics.items():
        if np.ndim(total):  # a histogram, in which rounding moves a score to the next bin
            assert found.metrics[name][0].sum() == total.sum() > 0, name
            continue
        assert found.metrics[name][0] == pytest.approx(float(total), rel=1e-5), name
        assert float(found.metrics[name][1]) == float(count) > 0, name
    leaves = jax.tree_util.tree_leaves_with_path(expected.gradient)
    for (path, leaf), other in zip(leaves, jax.tree.leaves(found.gradient), strict=True):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        # Softmax cancels a key's bias, so its gradient is rounding error in most losses.
        if "key/bias" not in name or max(np.abs(leaf).max(), np.abs(other).max()) > 1e-5:
            assert relative_error(other, leaf) < 1e-5, name


@pytest.mark.parametrize("lost", ["segment_ids", "position_ids", "cls_positions"])
def test_each_separation_of_packed_examples_is_needed(lost: str) -> None:
    losses, batch = loss_function(Setting()), packed_batch()
    whole_row = {
        "segment_ids": np.minimum(batch["segment_ids"], 1),
        "position_ids": np.broadcast_to(np.arange(SEQ_LENGTH), batch["position_ids"].shape),
        "cls_positions": np.zeros_like(batch["cls_positions"]),
    }
    changed = losses(batch | {lost: whole_row[lost]})
    assert abs(changed.loss - losses(unpacked_batch()).loss) > 1e-3
