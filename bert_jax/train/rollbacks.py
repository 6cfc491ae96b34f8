"""The rollbacks of a run: what data was left out, and from which checkpoint on.

``rollbacks.json`` in the run directory says it from the moment of the decision: a run that is
stopped before the next checkpoint resumes past the same data.
"""

from typing import Final

import jax
import pydantic
from etils import epath

from bert_jax.data.loader.data_position import DataPosition
from bert_jax.files.atomic import write_whole
from bert_jax.section import Section
from bert_jax.train.bad_steps import BadStep
from bert_jax.train.progress import TrainProgress
from bert_jax.validation import read_section

FILE: Final = "rollbacks.json"


class Rollback(Section):
    """One of them."""

    checkpoint: int = pydantic.Field(ge=0)  # the step that the run went back to; 0 is its start
    bad_step: int = pydantic.Field(ge=1)  # the step that went bad
    reason: str  # what was wrong with it
    phase: int = pydantic.Field(ge=0)  # of the bad step
    first: int = pydantic.Field(ge=0)  # the first row that is left out, counted over the phase
    position: DataPosition  # the data position to go on from

    def apply(self, progress: TrainProgress) -> None:
        """Moves the progress of the checkpoint past the data."""
        if progress.phase < self.phase:
            progress.start_phase(self.phase)
        progress.position = self.position


class RollbackFile(Section):
    """What the file holds."""

    rollbacks: tuple[Rollback, ...] = ()


class RollbackLog:
    """All of a run's, oldest first."""

    def __init__(self, run_dir: epath.Path, *, step: int) -> None:
        """Reads those that count at a checkpoint's step: later ones will be decided again.

        Raises:
            UserError: the file is damaged.
        """
        self._path = run_dir / FILE
        found = read_section(RollbackFile, self._path) if self._path.exists() else RollbackFile()
        self._all = [entry for entry in found.rollbacks if entry.checkpoint <= step]

    def to(self, step: int) -> list[Rollback]:
        """Returns those to one checkpoint; the last says where the data goes on."""
        return [entry for entry in self._all if entry.checkpoint == step]

    def add(self, bad: BadStep, progress: TrainProgress, *, at: TrainProgress) -> Rollback:
        """Writes down a rollback from the progress `at` a bad step to another, and returns it."""
        assert at.position is not None
        start = progress.position if progress.phase == at.phase else None
        if before := self.to(progress.step):
            start = before[-1].position
        entry = Rollback(
            checkpoint=progress.step,
            bad_step=bad.step,
            reason=bad.reason,
            phase=at.phase,
            first=start.example_index if start else 0,
            position=at.position,
        )
        self._all.append(entry)
        if jax.process_index() == 0:
            write_whole(
                self._path, RollbackFile(rollbacks=tuple(self._all)).model_dump_json(indent=1)
            )
        return entry
