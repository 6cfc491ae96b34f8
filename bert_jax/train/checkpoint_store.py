"""The interface to stored checkpoints; `bert_jax.runs.checkpoints` chooses the implementation.

A checkpoint has three parts: parameters, optimizer (with step and random key) and progress.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol, Self

from bert_jax.task import Params
from bert_jax.train.manifest import SelectionScore
from bert_jax.train.state import TrainState

PARAMS: Final = "params"
OPTIMIZER: Final = "optimizer"
PROGRESS: Final = "progress"


class CheckpointReader(Protocol):
    """Finds and reads the checkpoints of one run; a context manager.

    Arrays are read into the layout of the abstract ones, whose mesh need not be that of saving.
    Their files are compared with what was saved, once, before anything is read from them. A file
    that differs is a UserError; so is a tensor that is missing, unexpected, not finite, or of
    another shape or dtype.
    """

    def all_steps(self) -> list[int]:
        """Returns the steps of all finished checkpoints, oldest first; files are not compared."""
        ...

    def latest_step(self) -> int | None:
        """Returns the step of the newest whole checkpoint; one that is not is passed over, aloud.

        Raises:
            UserError: there are checkpoints, and none is whole.
        """
        ...

    def latest_params(self) -> int | None:
        """Returns the step of the newest checkpoint whose parameters are whole, as above."""
        ...

    def best_step(self) -> int | None:
        """Returns the step with the best selection score and whole parameters; None without one.

        Scores of another phase or of other validation data than the newest are not compared.
        """
        ...

    def problem(self, step: int) -> str | None:
        """Returns what is wrong with a checkpoint; None if every file is what was saved."""
        ...

    def has_optimizer(self, step: int) -> bool:
        """Says whether a checkpoint is more than parameters."""
        ...

    def progress(self, step: int) -> Mapping[str, Any]:
        """Returns a checkpoint's progress as plain JSON, ``{}`` if it is parameters alone."""
        ...

    def restore_params(self, abstract_params: Params, *, step: int) -> Params:
        """Reads the parameters alone."""
        ...

    def restore_optimizer(self, abstract: TrainState, *, step: int) -> TrainState:
        """Reads everything but the parameters, which stay as `abstract` has them."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *raised: object) -> None: ...


class CheckpointWriter(CheckpointReader, Protocol):
    """Saves the checkpoints of a run that trains, which also reads the one it resumes from."""

    def save(
        self,
        state: TrainState,
        *,
        step: int,
        progress: Mapping[str, Any],
        selection_score: SelectionScore | None = None,
    ) -> None:
        """Starts saving the state as `step`; the next save or leaving the context waits for it.

        Args:
            state: of a run that is healthy.
            step: optimizer steps done, the same number as in the state.
            progress: plain JSON: data position, phase, metrics not yet reported.
            selection_score: of an evaluation at this step.

        Raises:
            RunStopped: this or the save before failed, and that is to stop the run.
        """
        ...

    def save_local(self, state: TrainState, *, step: int, progress: Mapping[str, Any]) -> None:
        """Starts saving the state on this host's own disk; does nothing where none is set."""
        ...

    def not_saved(self, step: int, reason: str) -> None:
        """Answers to what keeps a step from being saved before its save begins, as to a failed one.

        Each process must call it.

        Raises:
            RunStopped: that is to stop the run.
        """
        ...

    def add_score(self, step: int, score: SelectionScore) -> None:
        """Says of a whole checkpoint how an evaluation that came later ranks it."""
        ...

    def save_params(
        self, params: Params, *, step: int, selection_score: SelectionScore | None = None
    ) -> None:
        """Saves parameters alone: all there is of an imported model, or of a sweep's best."""
        ...

    def wait(self) -> None:
        """Waits until everything saved is whole on disk.

        Raises:
            RunStopped: the last save failed.
        """
        ...
