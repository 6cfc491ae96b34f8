"""The rollbacks of a run: which data was left out, and from which checkpoint on."""

import json
from typing import Final

import jax
import pydantic
from etils import epath

from bert_jax.data.loader.data_position import DataPosition
from bert_jax.files.atomic import write_whole
from bert_jax.files.seal import read_sealed, sealed
from bert_jax.section import Section
from bert_jax.train.bad_steps import BadStep
from bert_jax.train.progress import TrainProgress
from bert_jax.validation import validate

ROLLBACKS: Final = "rollbacks.json"


class Rollback(Section):
    """A return to a checkpoint."""

    checkpoint: int = pydantic.Field(ge=0)  # the step that the run went back to; 0 is its start
    bad_step: int = pydantic.Field(ge=1)  # the step that went bad
    reason: str  # what was wrong with it
    # Loss, gradient norm and their limits; one that is missing was not finite
    figures: dict[str, float] = pydantic.Field(default_factory=dict)
    phase: int = pydantic.Field(ge=0)  # of the bad step
    first: int = pydantic.Field(ge=0)  # the first row that is left out, counted over the phase
    position: DataPosition  # the data position to go on from

    def apply(self, progress: TrainProgress) -> None:
        """Moves the progress of the checkpoint past the data."""
        if progress.phase < self.phase:
            progress.start_phase(self.phase)
        progress.position = self.position


class RollbackFile(Section):
    """What `ROLLBACKS` holds."""

    rollbacks: tuple[Rollback, ...] = ()


class RollbackLog:
    """The rollbacks of a run, oldest first.

    Its file says it from the moment of the decision: a run that is stopped before the next
    checkpoint resumes past the same data.
    """

    def __init__(self, run_dir: epath.Path) -> None:
        """Reads the file, if there is one; raises UserError: it is damaged."""
        self._path = run_dir / ROLLBACKS
        self._all: list[Rollback] = []
        if self._path.exists():
            found = validate(RollbackFile, read_sealed(self._path), source=str(self._path))
            self._all = list(found.rollbacks)

    def apply(self, progress: TrainProgress) -> None:
        """Moves the progress of a checkpoint past the data that rollbacks to it have left out.

        Those to later checkpoints are forgotten: they will be decided again.
        """
        self._all = [entry for entry in self._all if entry.checkpoint <= progress.step]
        if before := self.to(progress.step):
            before[-1].apply(progress)

    @property
    def entries(self) -> tuple[Rollback, ...]:
        """All rollbacks that count."""
        return tuple(self._all)

    def to(self, step: int) -> list[Rollback]:
        """Returns those to one checkpoint; the last says where the data goes on."""
        return [entry for entry in self._all if entry.checkpoint == step]

    def add(self, bad: BadStep, progress: TrainProgress, *, at: TrainProgress) -> Rollback:
        """Writes down a rollback from the progress `at` a bad step to another, and returns it.

        `progress` is that which the checkpoint gives, with what earlier rollbacks to it left out.
        """
        assert at.position is not None
        start = progress.position if progress.phase == at.phase else None
        entry = Rollback(
            checkpoint=progress.step,
            bad_step=bad.step,
            reason=bad.reason,
            figures=bad.finite,
            phase=at.phase,
            first=start.example_index if start else 0,
            position=at.position,
        )
        self._all.append(entry)
        if jax.process_index() == 0:
            body = RollbackFile(rollbacks=tuple(self._all)).model_dump(mode="json")
            write_whole(self._path, json.dumps(sealed(body), indent=1))
        return entry
