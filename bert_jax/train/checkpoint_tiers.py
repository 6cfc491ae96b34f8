"""Checkpoints in two tiers: in the run directory, and newer ones on the hosts' own disks."""

from collections.abc import Mapping
from typing import Any

from etils import epath

from bert_jax.task import Params
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.checkpoint_local import LocalCheckpoints
from bert_jax.train.sections import CheckpointSection
from bert_jax.train.state import TrainState


class TieredCheckpoints(Checkpointer):
    """What `Checkpointer` does, but that a run goes on from a local checkpoint where one is newer.

    Evaluation, export and whoever else opens the run directory see that alone.
    """

    def __init__(
        self,
        directory: epath.PathLike,
        section: CheckpointSection,
        local: LocalCheckpoints,
        **more: Any,
    ) -> None:
        """Opens the run's own as `Checkpointer` does; `local` is the other tier."""
        super().__init__(directory, section, **more)
        self._local, self._chosen = local, -1  # the local step that the run goes on from

    def latest_step(self) -> int | None:
        """Returns the newest step that is whole, on all hosts or in the run directory."""
        newest = max(self.all_steps(), default=0)
        found = self._local.newest(above=newest)
        self._chosen = -1 if found is None else found
        if found is None:
            found = super().latest_step()
        self._local.forget_after(found or 0)
        return found

    def has_optimizer(self, step: int) -> bool:
        """Says whether a checkpoint is more than parameters."""
        return step == self._chosen or super().has_optimizer(step)

    def progress(self, step: int) -> Mapping[str, Any]:
        """Returns a checkpoint's progress as plain JSON."""
        return self._local.progress(step) if step == self._chosen else super().progress(step)

    def restore_params(self, abstract_params: Params, *, step: int) -> Params:
        """Reads the parameters alone."""
        if step != self._chosen:
            return super().restore_params(abstract_params, step=step)
        wanted = TrainState(None, None, abstract_params, (), None)
        return self._local.restore(wanted, step=step).params

    def restore_optimizer(self, abstract: TrainState, *, step: int) -> TrainState:
        """Reads everything but the parameters, which stay as `abstract` has them."""
        if step != self._chosen:
            return super().restore_optimizer(abstract, step=step)
        restored = self._local.restore(abstract._replace(params={}), step=step)
        return restored._replace(params=abstract.params)

    def save_local(self, state: TrainState, *, step: int, progress: Mapping[str, Any]) -> None:
        """Starts saving the state on this host's own disk."""
        self._local.save(state, step=step, progress=progress)

    def __exit__(self, *raised: object) -> None:
        try:
            self._local.close()
        finally:
            super().__exit__(*raised)
