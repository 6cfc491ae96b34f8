"""The checkpoints on disk: which are whole, which is the newest or the best, which are to go."""

import contextlib
import dataclasses
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

import jax
import pydantic
from etils import epath

from bert_jax.errors import RunStopped, UserError, first_line
from bert_jax.files.read import is_whole
from bert_jax.train.agreement import from_first_process
from bert_jax.train.manifest import (
    COMMITTED,
    MANIFEST,
    Damage,
    SelectionScore,
    damage,
    read_manifest,
    replace_manifest,
)
from bert_jax.train.sections import CheckpointSection

TEMPORARY: Final = ".orbax-checkpoint-tmp"  # ends the name of a directory that Orbax writes to


class StepEntry(NamedTuple):
    """A checkpoint as its directory shows it, its files not yet compared."""

    problem: str | None  # why it is not whole
    finished: bool  # False: a save that was cut off, which nobody ever took for a checkpoint
    parts: list[str]
    score: SelectionScore | None


_ENTRIES: Final[Any] = pydantic.TypeAdapter(dict[int, StepEntry])


class CheckpointDirectory:
    """The checkpoints of a run.

    With several processes the first one looks and all act on what it found; each must call.
    """

    def __init__(self, path: epath.Path, *, say: Callable[[str], None]) -> None:
        """Reads the manifests.

        The path, local or gs://, need not exist. `say` gets a line about each checkpoint that is
        not whole and is passed over. Raises UserError: a file lies there, or it cannot be read.
        """
        self.path = path
        self._say = say
        self._verified: dict[tuple[int, str], str | None] = {}  # → what is wrong
        found = from_first_process(lambda: _ENTRIES.dump_python(_scan(path), mode="json"))
        self._entries: dict[int, StepEntry] = _ENTRIES.validate_python(found)

    def steps(self) -> list[int]:
        """Returns the steps that have a sound manifest, oldest first; files are not compared."""
        return sorted(step for step, entry in self._entries.items() if entry.problem is None)

    def listed(self) -> list[int]:
        """Returns every step that has a directory or file, whole or not, oldest first."""
        return sorted(self._entries)

    def was_finished(self, step: int) -> bool:
        """Says whether a checkpoint was ever whole, rather than cut off while it was saved."""
        return self._entries[step].finished

    def has(self, step: int, part: str) -> bool:
        """Says whether a checkpoint has an item."""
        return step in self._entries and part in self._entries[step].parts

    def add(self, step: int, parts: Collection[str], score: SelectionScore | None) -> None:
        """Counts a checkpoint that has just been saved, and so is whole."""
        self._entries[step] = StepEntry(None, True, sorted(parts), score)
        self._verified |= {(step, part): None for part in parts}

    def add_score(self, step: int, score: SelectionScore) -> None:
        """Writes the score of an evaluation that came after the checkpoint was saved."""
        self._entries[step] = self._entries[step]._replace(score=score)
        if jax.process_index() == 0:
            directory = self.path / str(step)
            manifest = read_manifest(directory, step=step)
            replace_manifest(directory, dataclasses.replace(manifest, score=score))

    def outdated(self) -> bool:
        """Says whether a checkpoint is gone that was there when the manifests were read.

        So it is where a run goes on meanwhile, and keeps newer ones only.
        """
        for step, entry in self._entries.items():
            directory = self.path / str(step)
            if not directory.exists():
                return True
            if entry.problem is None and not (directory / MANIFEST).exists():
                return True
        return False

    def newest(self, parts: Collection[str] | None) -> int | None:
        """Returns the newest checkpoint whose files are those that were saved.

        `parts` are the items to compare; None for all. Raises UserError: there are checkpoints, and
        none is whole.
        """
        return self._first_whole(sorted(self._entries, reverse=True), parts)

    def best(self, parts: Collection[str] | None) -> int | None:
        """Returns the best whole checkpoint of the newest comparison; None if there is none."""
        return self._first_whole(self._ranked(), parts)

    def require(self, step: int, parts: Collection[str] | None) -> None:
        """Makes sure that a checkpoint is whole; UserError: it is not."""
        if problem := self.problem(step, parts):
            raise UserError(f"{self.path / str(step)}: damaged: {problem}")

    def problem(self, step: int, parts: Collection[str] | None = None) -> str | None:
        """Returns what is wrong with a checkpoint; None if it is whole."""
        entry = self._entries.get(step)
        if entry is None:
            return "no such checkpoint"
        if entry.problem is not None:
            return entry.problem
        wanted = [part for part in entry.parts if parts is None or part in parts]
        unknown = [part for part in wanted if (step, part) not in self._verified]
        if unknown:
            directory = self.path / str(step)
            found = from_first_process(lambda: damage(directory, step=step, parts=unknown))
            self._verified |= {(step, part): found for part in unknown}
        return next(filter(None, (self._verified[step, part] for part in wanted)), None)

    def retire(self, section: CheckpointSection) -> None:
        """Deletes the checkpoints that are not to be kept, once a newer one is whole.

        The newest is never deleted: it was found whole, or has just been saved.
        """
        damaged = {step for (step, _), found in self._verified.items() if found}
        sound = [step for step in self.steps() if step not in damaged]
        keep = {*sound[-section.keep_last :]}
        keep |= {*[step for step in self._ranked() if step in sound][: section.keep_best]}
        keep |= {step for step in sound if section.keep_every and step % section.keep_every == 0}
        for step in sorted(self._entries.keys() - keep):
            if step < max(keep, default=0):
                del self._entries[step]
                if jax.process_index() == 0:
                    self._delete(self.path / str(step))

    def sweep(self, failed: int | None = None) -> None:
        """Deletes what killed processes, or the save that failed, left unfinished.

        The caller must be the only writer. A directory that a thread still writes to goes with the
        next failure, or at the next start.
        """
        if failed is not None:
            self._entries.pop(failed, None)
        if jax.process_index() == 0:
            for path in self.path.glob(f"*{TEMPORARY}*"):
                with contextlib.suppress(OSError, UserError, RunStopped):
                    _remove(path)

    def _delete(self, directory: epath.Path) -> None:
        """Deletes a checkpoint, its marks first: no moment of it looks like a damaged one."""
        try:
            if directory.is_dir():
                for mark in (COMMITTED, MANIFEST):
                    (directory / mark).unlink(missing_ok=True)
            _remove(directory)
        except (OSError, UserError, RunStopped) as error:  # a newer one is saved all the same
            self._say(f"{directory}: could not be deleted ({first_line(error)}); it stays")

    def _ranked(self) -> list[int]:
        """Returns the steps of the newest comparison, the best first, of equals the newer."""
        scores = {s: e.score for s, e in self._entries.items() if e.score and e.problem is None}
        if not scores:
            return []
        comparison = scores[max(scores)].comparison
        compared = [step for step in scores if scores[step].comparison == comparison]
        return sorted(compared, key=lambda step: (scores[step].value, -step))

    def _first_whole(self, steps: list[int], parts: Collection[str] | None) -> int | None:
        passed: dict[int, str] = {}
        chosen = None
        for step in steps:
            problem = self.problem(step, parts)
            if problem is None:
                chosen = step
                break
            passed[step] = problem
        told = ", ".join(f"checkpoint {step}: {problem}" for step, problem in passed.items())
        lost = [step for step in passed if self._entries[step].finished]
        if chosen is None and lost:
            raise UserError(
                f"{self.path}: no whole checkpoint ({told}); allowed: a copy of one of them, or a "
                f"new run_dir"
            )
        if passed:
            instead = "there is none before it" if chosen is None else f"using {chosen} instead"
            self._say(f"{self.path}: NOT WHOLE: {told}; {instead}")
        return chosen


def _scan(path: epath.Path) -> dict[int, StepEntry]:
    """Returns the entry of each directory or file whose name is a step."""
    try:
        if not path.exists():
            return {}
        if not path.is_dir():
            raise UserError(f"{path}: found a file, allowed: a directory of checkpoints")
        names = [found.name for found in path.iterdir()]
        steps = [name for name in names if is_whole(name) and name == str(int(name[:18]))]
        return {int(step): _look(path / step, int(step)) for step in steps}
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error


def _look(directory: epath.Path, step: int) -> StepEntry:
    if not directory.is_dir():
        return StepEntry("is a file, allowed: a directory", False, [], None)
    if not (directory / MANIFEST).exists():
        if not (directory / COMMITTED).exists():
            return StepEntry(f"not finished (no {MANIFEST})", False, [], None)
        return StepEntry(f"no {MANIFEST}: lost", True, [], None)
    try:
        manifest = read_manifest(directory, step=step)
    except Damage as error:
        return StepEntry(str(error), True, [], None)
    return StepEntry(None, True, manifest.parts, manifest.score)


def _remove(path: epath.Path) -> None:
    if path.is_dir():
        path.rmtree(missing_ok=True)
    else:
        path.unlink(missing_ok=True)
