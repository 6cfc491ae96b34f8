"""Training with `fused` attention and loss, interpreted, goes the way that it goes with `xla`."""

import functools

import numpy as np
import pytest

from tests.support import small_batch
from tests.train.harness import Setting, Trainer, first_state

STEPS = 20
HEADS_OF_32 = (("num_attention_heads", 2), ("num_hidden_layers", 1))


@functools.cache
def losses(kernels: str, shape: tuple[int, int, int]) -> list[float]:
    """Of twenty steps over one batch, its rows padded, without dropout."""
    setting = Setting(attention=kernels, loss=kernels, changes=HEADS_OF_32, peak=1e-3)
    batch = small_batch(rows=8)
    trainer = Trainer(setting, shape, batch)
    state, found = trainer.place(first_state(Setting(changes=HEADS_OF_32))), []
    for _ in range(STEPS):
        state, metrics = trainer.step(state, batch)
        found.append(metrics["loss"][0])
    return found


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2)], ids=str)
def test_its_loss_curve_is_that_of_xla_on_one_device_and_on_a_mesh(
    shape: tuple[int, int, int],
) -> None:
    expected = losses("xla", (1, 1, 1))
    np.testing.assert_allclose(losses("fused", shape), expected, rtol=1e-4)
    assert expected[-1] < 0.95 * expected[0]
