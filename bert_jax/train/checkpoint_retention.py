"""Verifies the checkpoints of a run, finds the newest and the best, and deletes old ones."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, NamedTuple

import jax
import pydantic
from etils import epath

from bert_jax.errors import RunStopped, UserError, commas, first_line
from bert_jax.files.read import is_whole
from bert_jax.files.remote import is_remote
from bert_jax.parallel.same_settings import all_equal, require_same
from bert_jax.train import checkpoint_manifest as manifest
from bert_jax.train.agree_with_first_process import from_first_process
from bert_jax.train.sections import CheckpointSection

TEMPORARY: Final = ".orbax-checkpoint-tmp"  # suffix of a directory while Orbax writes it


class StepEntry(NamedTuple):
    """A checkpoint's description from its manifest; the files are not verified."""

    problem: str | None  # reason if the checkpoint is incomplete or damaged
    finished: bool  # whether the save was completed
    parts: list[str]
    score: manifest.SelectionScore | None


_ENTRIES: Final[Any] = pydantic.TypeAdapter(dict[int, StepEntry])


class CheckpointDirectory:
    """The checkpoints of a run. Files are hashed once, when first needed.

    In a job of several processes, the first process reads and shares the results. Every process
    must call each method.

    Attributes:
        entries: all checkpoints by step, including incomplete and damaged checkpoints.
    """

    def __init__(self, path: epath.Path, *, say: Callable[[str], None]) -> None:
        """Reads the manifests below a local or gs:// path, which may be missing.

        `say` prints a warning about skipped checkpoints. Raises UserError if the path is a file or
        cannot be read.
        """
        self.path = path
        self._say = say
        self._verified: dict[tuple[int, str], str | None] = {}  # (step, part) → problem
        found = from_first_process(lambda: _ENTRIES.dump_python(_scan(path), mode="json"))
        self.entries: dict[int, StepEntry] = _ENTRIES.validate_python(found)

    def steps(self) -> list[int]:
        """Returns the steps with a valid manifest, oldest first; the files are not verified."""
        return sorted(step for step, entry in self.entries.items() if entry.problem is None)

    def has(self, step: int, part: str) -> bool:
        """Returns whether a checkpoint has an item."""
        return step in self.entries and part in self.entries[step].parts

    def add(self, step: int, parts: Collection[str], score: manifest.SelectionScore | None) -> None:
        """Adds a newly saved checkpoint."""
        self.entries[step] = StepEntry(None, True, sorted(parts), score)
        self._verified |= {(step, part): None for part in parts}

    def add_score(self, step: int, score: manifest.SelectionScore) -> None:
        """Stores the score of an evaluation that ran after the save."""
        self.entries[step] = self.entries[step]._replace(score=score)
        if jax.process_index() == 0:
            directory = self.path / str(step)
            saved = manifest.read_manifest(directory, step=step)
            manifest.replace_manifest(directory, dataclasses.replace(saved, score=score))

    def outdated(self) -> bool:
        """Returns whether another process has deleted one of these checkpoints."""
        return any(
            not (self.path / str(step) / ("" if entry.problem else manifest.MANIFEST)).exists()
            for step, entry in self.entries.items()
        )

    def newest(self, part: str | None = None) -> int | None:
        """Returns the step of the newest undamaged checkpoint, or None if there are none.

        If `part` is set, verifies only the files of that item. Raises UserError if all checkpoints
        are damaged.
        """
        return self._first_whole(sorted(self.entries, reverse=True), part)

    def best(self) -> int | None:
        """Returns the step of the best checkpoint with undamaged parameters, or None.

        Only scores with the same phase and validation data as the newest score are compared.
        """
        return self._first_whole(self._ranked(), manifest.PARAMS)

    def problem(self, step: int, part: str | None = None) -> str | None:
        """Returns a checkpoint's damage, or None. If `part` is set, verifies only that item."""
        entry = self.entries.get(step)
        if entry is None:
            return "no such checkpoint"
        if entry.problem is not None:
            return entry.problem
        directory = self.path / str(step)
        for name in entry.parts if part is None else [part]:
            if (step, name) not in self._verified:
                found = from_first_process(
                    lambda name=name: manifest.damage(directory, step=step, part=name)
                )
                self._verified[step, name] = found
            if problem := self._verified[step, name]:
                return problem
        return None

    def require_same_copies(self, step: int, part: str) -> None:
        """Compares an item of a checkpoint over all processes, whose hosts may have own copies.

        If a copy is missing, damaged or another one, all processes raise the same UserError.
        """
        directory = self.path / str(step)
        if is_remote(directory) or all_equal(_identity(directory / manifest.MANIFEST)):
            return  # shared storage, which the first process has verified
        found = manifest.damage(directory, step=step, part=part) or manifest.content_hash(
            manifest.read_manifest(directory, step=step), part
        )
        # Relative to the run: hosts may have different home directories.
        require_same({"/".join([*directory.parts[-3:], part]): found})

    def retire(self, section: CheckpointSection) -> None:
        """Deletes old checkpoints that the settings do not keep.

        Call it after a save.
        """
        damaged = {step for (step, _), found in self._verified.items() if found}
        sound = [step for step in self.steps() if step not in damaged]
        keep = {*sound[-section.keep_last :]}
        keep |= {*[step for step in self._ranked() if step in sound][: section.keep_best]}
        keep |= {step for step in sound if section.keep_every and step % section.keep_every == 0}
        for step in sorted(self.entries.keys() - keep):
            if step < max(keep, default=0):
                del self.entries[step]
                if jax.process_index() == 0:
                    directory = self.path / str(step)
                    try:
                        delete_checkpoint(directory)
                    except (OSError, UserError, RunStopped) as error:  # not worth stopping the run
                        self._say(f"{directory}: could not be deleted ({first_line(error)})")

    def sweep(self, failed: int | None = None) -> None:
        """Deletes directories that killed processes or a failed save left unfinished."""
        if failed is not None:
            self.entries.pop(failed, None)
        if jax.process_index() == 0:
            for path in self.path.glob(f"*{TEMPORARY}*"):
                with contextlib.suppress(OSError, UserError, RunStopped):
                    _remove(path)

    def _ranked(self) -> list[int]:
        """Returns the steps whose scores are comparable with the newest score, best first.

        If scores are equal, the newer step comes first.
        """
        scores = {s: e.score for s, e in self.entries.items() if e.score and e.problem is None}
        if not scores:
            return []
        comparison = scores[max(scores)].comparison
        compared = [step for step in scores if scores[step].comparison == comparison]
        return sorted(compared, key=lambda step: (scores[step].value, -step))

    def _first_whole(self, steps: Iterable[int], part: str | None) -> int | None:
        skipped: dict[int, str] = {}
        chosen = None
        for step in steps:
            if (problem := self.problem(step, part)) is None:
                chosen = step
                break
            skipped[step] = problem
        damaged = [f"checkpoint {step}: {problem}" for step, problem in skipped.items()]
        if chosen is None and any(self.entries[step].finished for step in skipped):
            raise UserError(
                "checkpoint.all_damaged",
                f"all are damaged ({commas(damaged)}). Copy one again, or use a new run_dir.",
                place=self.path,
            )
        if skipped:
            instead = "no earlier one" if chosen is None else f"using {chosen} instead"
            self._say(f"{self.path}: NOT WHOLE: {', '.join(damaged)}; {instead}")
        return chosen


def delete_checkpoint(directory: epath.Path) -> None:
    """Deletes the markers, then the files, so that a partial deletion is not seen as damage."""
    if directory.is_dir():
        for mark in (manifest.COMMITTED, manifest.MANIFEST):
            (directory / mark).unlink(missing_ok=True)
    _remove(directory)


def _scan(path: epath.Path) -> dict[int, StepEntry]:
    """Returns an entry for each directory or file that is named like a step."""
    try:
        if not path.exists():
            return {}
        if not path.is_dir():
            raise UserError.wrong(
                "checkpoint.not_a_directory", "a file", "a directory of checkpoints", place=path
            )
        names = [found.name for found in path.iterdir()]
        steps = [name for name in names if is_whole(name) and name == str(int(name[:18]))]
        return {int(step): _entry(path / step, int(step)) for step in steps}
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            "checkpoint.unreadable", f"cannot be read ({reason})", place=path
        ) from error


def _entry(directory: epath.Path, step: int) -> StepEntry:
    if not directory.is_dir():
        return StepEntry("is a file, allowed: a directory", False, [], None)
    if not (directory / manifest.MANIFEST).exists():
        if not (directory / manifest.COMMITTED).exists():
            return StepEntry(f"not finished (no {manifest.MANIFEST})", False, [], None)
        return StepEntry(f"no {manifest.MANIFEST}: lost", True, [], None)
    try:
        saved = manifest.read_manifest(directory, step=step)
    except manifest.Damage as error:
        return StepEntry(str(error), True, [], None)
    return StepEntry(None, True, saved.parts, saved.score)


def _identity(path: epath.Path) -> list[int]:
    """Returns numbers that are equal on all hosts only for a file on storage that they share."""
    try:
        found = os.stat(path)
    except OSError:
        return []
    return [found.st_ino, found.st_ctime_ns]


def _remove(path: epath.Path) -> None:
    if path.is_dir():
        path.rmtree(missing_ok=True)
    else:
        path.unlink(missing_ok=True)
