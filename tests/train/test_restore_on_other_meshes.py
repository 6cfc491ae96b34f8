"""One run along several meshes ends as a run on one device does."""

from pathlib import Path

import numpy as np
import pytest

from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.sections import CheckpointSection
from tests.support import small_batch
from tests.train.harness import Setting, Trainer, first_state

# Their programs are compiled for test_mesh_equivalence.py as well.
MESHES = [(1, 1, 1), (2, 2, 2), (1, 8, 1)]


@pytest.mark.slow
def test_a_run_goes_on_along_other_meshes_with_the_same_loss(tmp_path: Path) -> None:
    setting, batch = Setting(), small_batch()
    alone = Trainer(setting, MESHES[0], batch)
    state = alone.place(first_state(setting))
    expected = []
    for _ in MESHES:
        state, metrics = alone.step(state, batch)
        expected.append(metrics["loss"][0])

    found = []
    for step, shape in enumerate(MESHES):
        trainer = alone if shape == MESHES[0] else Trainer(setting, shape, batch)
        with Checkpointer(tmp_path, CheckpointSection()) as checkpoints:
            last = checkpoints.on_disk.newest()
            if last is None:
                state = trainer.place(first_state(setting))
            else:
                state = checkpoints.restore_state(trainer.abstract, step=last)
            state, metrics = trainer.step(state, batch)
            found.append(metrics["loss"][0])
            checkpoints.save(state, step=step + 1, progress={})
    np.testing.assert_allclose(found, expected, rtol=1e-5)
