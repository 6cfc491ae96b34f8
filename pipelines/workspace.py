"""The directory of an unfinished dataset, and the progress of its stages."""

import contextlib
import json
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple, Self, TypeVar

from etils import epath

from bert_jax.data.dataset.provenance import PROVENANCE_NAME
from bert_jax.errors import RunStopped, UserError
from bert_jax.files.atomic import remove_unfinished, unfinished, write_errors, write_whole
from bert_jax.files.lock import hold_alone
from bert_jax.files.read import read_json_object
from bert_jax.files.remote import is_remote
from bert_jax.pipelines.changed_setting import name_change
from bert_jax.pipelines.engines.beam import BeamEngine
from bert_jax.pipelines.engines.local import WorkerPool
from bert_jax.pipelines.section import ExamplesSection
from bert_jax.pipelines.tally import is_made

Job = TypeVar("Job")
Result = TypeVar("Result")

_SETTINGS: Final = "settings.json"

# Settings that affect only shards (`_OF_SHARDS`), or shards and tokenised parts (`_OF_PARTS`).
_OF_SHARDS: Final = frozenset({"pairing", "num_shards", "mixture"})
_OF_PARTS: Final = frozenset({"validation_fraction"})

# Version of the work files and of the division into parts. An unfinished run of another version
# cannot be resumed.
_WORK_VERSION: Final = 4


class UnusableText(UserError):
    """No settings can make a dataset of the text.

    The text must change, so the work finished so far is useless.
    """


class Workspace:
    """Context manager for the directories of an unfinished dataset: shards and ``work/``.

    On a file system both are in ``<output>.partial``. :meth:`publish` renames it to the output's
    name, so readers never see an incomplete dataset. A bucket cannot rename a directory, so there
    the shards are written to the output itself. ``provenance.json`` is written last, and no reader
    opens a directory without it.

    A lock prevents two processes from making the same dataset. After an exception the directory
    stays, and the next run resumes there. After a UserError whose correction makes its files
    useless, it is removed.
    """

    def __init__(
        self, output: epath.PathLike, *, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self.output = epath.Path(output)
        partial = self.output.with_name(self.output.name + ".partial")
        self.partial = self.output if is_remote(self.output) else partial
        self.work = partial / "work"
        self._say = say
        self._is_ours = False  # True once the directory's files belong to this run's settings

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._lock = stack.enter_context(hold_alone(self.output, say=self._say))
            if (self.output / PROVENANCE_NAME).exists():
                raise UserError(
                    "examples.just_made",
                    "another run has just made this dataset. Run the same command again to use it.",
                    place=self.output,
                )
            if not is_remote(self.output):  # a bucket has no empty directories
                with write_errors(self.output):
                    self.work.mkdir(parents=True, exist_ok=True)
                    for directory in (self.partial, self.work):
                        remove_unfinished(pathlib.Path(directory))
            self._resources = stack.pop_all()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # If another process has taken the lock in a bucket, `check` raises and nothing is removed.
        with self._resources, contextlib.suppress(RunStopped, OSError):
            if isinstance(error, UserError):
                self._lock.check()
                self._tidy(is_useless=isinstance(error, UnusableText))

    @property
    def is_begun(self) -> bool:
        """Whether there is an unfinished run to resume."""
        return (self.work / _SETTINGS).exists()

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Raises UserError if finished work of an unfinished run depends on a changed setting.

        If there is no shard yet, `validation_fraction` may change, because only tokenised text
        shows whether it is too small. The tokenised parts are then made again.
        """
        path = self.work / _SETTINGS
        text = json.dumps({"work_version": _WORK_VERSION, **settings}, indent=1, sort_keys=True)
        # If the earlier run made nothing, its settings do not matter.
        if path.exists() and any(made.name != _SETTINGS for made in self.work.iterdir()):
            held, asked = read_json_object(path), json.loads(text)
            changed = {key for key in asked if held.get(key) != asked[key]}
            if changed and not self._has_finished:
                self._clear()
            elif fixed := changed - (frozenset() if self._has_shards else _OF_SHARDS | _OF_PARTS):
                raise UserError(
                    "examples.unfinished",
                    f"{name_change(held, asked, fixed)} in an unfinished run. Finish or delete it.",
                    place=self.partial,
                )
            elif changed & _OF_PARTS:
                for part in self.work.glob("part-*"):
                    part.rmtree()
        write_whole(path, text)
        self._is_ours = True

    @property
    def _has_shards(self) -> bool:
        return any(self.partial.glob("*.array_record*"))

    @property
    def _has_finished(self) -> bool:
        """Whether there is a complete part, spill or shard."""
        made = (path for name in ("part-*", "spill-*") for path in self.work.glob(name))
        return self._has_shards or any(map(is_made, made))

    def _tidy(self, *, is_useless: bool) -> None:
        """Removes work that no run can use, and empty directories."""
        if self._is_ours and not self._has_shards and (is_useless or not self._has_finished):
            self._clear()
        if not is_remote(self.output):
            for directory in (self.work, self.partial):
                pathlib.Path(directory).rmdir()  # raises OSError if it is not empty

    def _clear(self) -> None:
        self.work.rmtree(missing_ok=True)
        if not is_remote(self.output):
            self.work.mkdir()

    def publish(self) -> None:
        """Removes ``work/`` and gives the directory its final name.

        Raises RunStopped if another process has taken the lock.
        """
        self._lock.check()
        if is_remote(self.output):
            self.work.rmtree()
            return
        # Rename work/ before removing it: after an interruption, its remains would look like an
        # unfinished run.
        gone = unfinished(pathlib.Path(self.work))
        self.work.rename(gone)
        shutil.rmtree(gone)
        pathlib.Path(self.partial).rename(self.output)  # replaces an empty directory


class DatasetBuild(NamedTuple):
    """Objects that the stages of one `make_examples` call share."""

    section: ExamplesSection
    workspace: Workspace
    engine: WorkerPool | BeamEngine
    say: Callable[[str], None]  # prints a line of progress

    def run(
        self,
        function: Callable[[Job], Result],
        jobs: Sequence[Job],
        *,
        name: str,
        total: int,
        unit: str,
        work: Callable[[Job], float],
        result: Callable[[Job, Result], tuple[str, float]],
    ) -> Iterator[Result]:
        """Yields the result of each job of a stage as it finishes, and prints a line of progress.

        Args:
            function: function that does a job.
            jobs: jobs to do.
            name: noun for a job: ``tokenised part``.
            total: number of jobs, including the jobs that an earlier run finished.
            unit: unit of the printed speed.
            work: function that returns a job's size, for the estimate of the remaining time.
            result: function that returns a job's result as text, and its amount in ``unit``.
        """
        finished, left, done, amount = total - len(jobs), sum(map(work, jobs)), 0.0, 0.0
        started = time.monotonic()
        for job, made in self.engine.run(function, jobs):
            text, more = result(job, made)
            finished, done, amount = finished + 1, done + work(job), amount + more
            seconds = max(time.monotonic() - started, 1e-6)
            rate = amount / seconds
            line = f"{name} {finished} of {total}: {text}, "
            line += f"{rate:,.1f} {unit}/s" if rate < 100 else f"{rate:,.0f} {unit}/s"
            if finished < total and done:
                line += f", {timedelta(seconds=round(seconds * (left - done) / done))} left"
            self.say(line)
            yield made
