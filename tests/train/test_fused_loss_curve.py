"""In interpret mode, training with `fused` attention and loss has the loss curve of `xla`."""

import functools

import numpy as np
import pytest

from tests.support import small_batch
from tests.train.harness import Setting, Trainer, first_state

STEPS = 20
HEADS_OF_32 = (("num_attention_heads", 2), ("num_hidden_layers", 1))


@functools.cache
def losses(kernels: str, shape: tuple[int, int, int]) -> list[float]:
    """Returns the losses of `STEPS` steps on one batch of padded rows, without dropout."""
    setting = Setting(attention=kernels, loss=kernels, changes=HEADS_OF_32, peak=1e-3)
    batch = small_batch(rows=8)
    trainer = Trainer(setting, shape, batch)
    state, found = trainer.place(first_state(Setting(changes=HEADS_OF_32))), []
    for _ in range(STEPS):
        state, metrics = trainer.step(state, batch)
        found.append(metrics["loss"][0])
    return found


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2)], ids=str)
def test_fused_loss_curve_equals_xlas(
    shape: tuple[int, int, int],
) -> None:
    expected = losses("xla", (1, 1, 1))
    np.testing.assert_allclose(losses("fused", shape), expected, rtol=1e-4)
    assert expected[-1] < 0.95 * expected[0]
