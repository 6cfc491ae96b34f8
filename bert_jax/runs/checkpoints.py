"""The checkpoints of a run directory: the one place that chooses what stores them."""

from typing import Final

from etils import epath
from jax.sharding import Mesh

from bert_jax.runs.directory import CHECKPOINTS
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.checkpoint_local import LocalCheckpoints
from bert_jax.train.checkpoint_tiers import TieredCheckpoints
from bert_jax.train.messages import warn_aloud
from bert_jax.train.sections import CheckpointSection

DEFAULTS: Final = CheckpointSection()


def open_checkpoints(run_dir: epath.PathLike) -> Checkpointer:
    """Opens a run's checkpoints to read them; nothing in the directory is changed."""
    return Checkpointer(epath.Path(run_dir) / CHECKPOINTS, DEFAULTS, read_only=True, say=warn_aloud)


def write_checkpoints(
    run_dir: epath.PathLike,
    section: CheckpointSection = DEFAULTS,
    *,
    save_bytes: int | None = None,
    mesh: Mesh | None = None,
) -> Checkpointer:
    """Opens a run's checkpoints to add to them. The caller must be the run's only writer.

    Args:
        run_dir: local or gs://.
        section: what to keep, and what to do when a save fails.
        save_bytes: how much may be on its way to the disk at a time, at least the largest array;
            None for the store's own limit.
        mesh: that the state lies on; without it nothing is saved on the hosts' own disks.

    Raises:
        UserError: the run's directory or the local one cannot be written.
    """
    path = epath.Path(run_dir) / CHECKPOINTS
    if section.local is not None and mesh is not None:
        local = LocalCheckpoints(section.local, epath.Path(run_dir), mesh, say=warn_aloud)
        return TieredCheckpoints(path, section, local, save_bytes=save_bytes, say=warn_aloud)
    return Checkpointer(path, section, save_bytes=save_bytes, say=warn_aloud)
