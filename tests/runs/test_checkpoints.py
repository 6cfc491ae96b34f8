"""Opening a run's checkpoints."""

from pathlib import Path

from bert_jax.runs.checkpoints import open_checkpoints


def test_reading_leaves_a_run_without_checkpoints_as_it_is(tmp_path: Path) -> None:
    with open_checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest_step() is None
        assert checkpoints.all_steps() == []
        assert checkpoints.best_step() is None
    assert list(tmp_path.iterdir()) == []
