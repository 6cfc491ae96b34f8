"""One optimizer step: accumulation, freezing after a non-finite loss, dropout keys, metrics."""

from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.objectives.masked_lm import MLM_EPSILON
from bert_jax.optim.schedule import learning_rate
from bert_jax.train.state import TrainState
from bert_jax.train.step import dropout_key
from tests.support import small_batch
from tests.train.harness import Setting, first_state, trainer

ONE = (1, 1, 1)


def fresh(setting: Setting) -> TrainState:
    return trainer(setting, ONE).place(first_state(Setting()))


def unevenly_masked() -> dict[str, np.ndarray]:
    """Returns rows with 1 or 6 masks, so the mean of microbatch means is not the batch's mean."""
    batch = small_batch(rows=16)
    counts = np.where(np.arange(16) % 4 == 0, 6, 1)
    batch["masked_lm_weights"] = (np.arange(6) < counts[:, None]).astype(np.float32)
    return batch


def assert_equal(found: Any, expected: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(found), jax.device_get(expected))


def test_the_loss_is_divided_as_in_the_release() -> None:
    _, metrics = trainer(Setting(), ONE).step(fresh(Setting()), unevenly_masked())
    (mlm, masked), (nsp, rows) = metrics["mlm_loss"], metrics["nsp_loss"]
    assert (masked, rows) == (4 * 6 + 12 * 1, 16)
    assert metrics["loss"][0] == pytest.approx(mlm / (masked + MLM_EPSILON) + nsp / rows, rel=1e-6)


def test_a_step_counts_and_reports_the_rate_it_used() -> None:
    state = fresh(Setting())
    for step in range(3):
        assert int(state.step) == step
        state, metrics = trainer(Setting(), ONE).step(state, small_batch(seed=step))
        assert metrics["learning_rate"][0] == pytest.approx(
            float(learning_rate(trainer(Setting(), ONE).schedule, step)), rel=1e-6
        )
        assert metrics["gradient_norm"][0] > 0
        assert metrics["healthy"] == (1.0, 1.0)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_nonfinite_loss_freezes_the_state(
    poison: float,
) -> None:
    setting = Setting(ema=0.9)
    first = trainer(setting, ONE).place(first_state(setting))
    before, _ = trainer(setting, ONE).step(first, small_batch())
    kept = jax.device_get(before)
    bad = small_batch(seed=1)
    bad["masked_lm_weights"][3, 0] = poison
    state, metrics = trainer(setting, ONE).step(before, bad)
    assert metrics["healthy"][0] == 0.0
    assert not np.isfinite(metrics["loss"][0])
    assert_equal(state, kept._replace(healthy=np.asarray(False)))
    # The next batch is good, but only the host may unfreeze the state.
    state, metrics = trainer(setting, ONE).step(state, small_batch(seed=2))
    assert metrics["healthy"][0] == 0.0
    assert np.isfinite(metrics["loss"][0])
    assert_equal(state, kept._replace(healthy=np.asarray(False)))


def test_an_overflowing_gradient_freezes_the_state() -> None:
    """The gradient norm can overflow although the loss is finite."""
    setting = Setting()
    state = fresh(setting)
    batch = small_batch()
    # Weights of about 1e23 give logits, a loss and gradients of that size. The squares in the norm
    # overflow float32.
    classifier = state.params["next_sentence"]["classifier"]
    classifier["kernel"] = classifier["kernel"] * 1e25
    _, metrics = trainer(setting, ONE).step(state, batch)
    assert np.isfinite(metrics["loss"][0])
    assert not np.isfinite(metrics["gradient_norm"][0])
    assert metrics["healthy"][0] == 0.0


def test_the_compiled_step_refuses_another_shape() -> None:
    with pytest.raises(TypeError, match="compiled"):
        trainer(Setting(), ONE).step(fresh(Setting()), small_batch(length=16))


def with_key(step: int, run_key: tuple[int, int]) -> TrainState:
    rng = np.asarray(run_key, np.uint32)
    return TrainState(np.int32(step), rng, {}, (), np.bool_(True))  # pyright: ignore


def test_the_dropout_key_is_a_function_of_run_key_and_step() -> None:
    keys = {
        (step, run): tuple(np.asarray(jax.random.key_data(dropout_key(with_key(step, run)))))
        for step in (0, 1, 2**20)
        for run in ((0, 1), (1, 0))
    }
    assert len(set(keys.values())) == len(keys)
    again = dropout_key(with_key(1, (0, 1)))
    assert tuple(np.asarray(jax.random.key_data(again))) == keys[(1, (0, 1))]


def test_dropout_varies_by_step_and_is_reproducible() -> None:
    setting = Setting(dropout=0.5)
    start = first_state(Setting())
    run = trainer(setting, ONE)
    losses = [
        run.step(run.place(start._replace(step=np.int32(step))), small_batch())[1]["loss"][0]
        for step in (0, 1, 2, 1)
    ]
    assert len(set(losses)) == 3
    assert losses[1] == losses[3]
