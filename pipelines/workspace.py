"""The directory that a dataset is made in, until it is complete, and the progress of its stages."""

import contextlib
import dataclasses
import json
import pathlib
import shutil
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple, Self

from etils import epath

from bert_jax.data.dataset.provenance import PROVENANCE_NAME
from bert_jax.errors import RunStopped, UserError
from bert_jax.files.atomic import remove_unfinished, unfinished, write_errors, write_whole
from bert_jax.files.lock import lock_at
from bert_jax.files.read import read_json_object
from bert_jax.files.remote import is_remote
from bert_jax.pipelines.changed_setting import name_change
from bert_jax.pipelines.cleaning.tally import is_made
from bert_jax.pipelines.engines.engine import Engine
from bert_jax.pipelines.section import ExamplesSection
from bert_jax.pipelines.unusable_text import UnusableText

_SETTINGS: Final = "settings.json"

# Settings that only the shards depend on, and those on which the tokenised parts do as well.
_OF_SHARDS: Final = frozenset({"pairing", "num_shards", "mixture"})
_OF_PARTS: Final = frozenset({"validation_fraction"})

# Of what an unfinished run leaves, and of how its parts are cut: only the same version resumes it.
_WORK_VERSION: Final = 3


@dataclasses.dataclass(kw_only=True)
class StageProgress:
    """Counts the jobs of one stage; the clock starts when it is made."""

    say: Callable[[str], None]  # gets a line for every job
    name: str  # of what is counted: `tokenised part`
    total: int  # jobs of the stage
    finished: int = 0  # of these, jobs that an earlier run has finished
    work: float  # size of the jobs that are left, all together; the time left is estimated from it
    unit: str  # of the rate: `MB`

    def __post_init__(self) -> None:
        self._done = 0.0
        self._counted = 0.0
        self._started = time.monotonic()

    def add(self, result: str, *, work: float, counted: float) -> None:
        """Counts a finished job of size ``work``, which is ``counted`` in the rate's unit."""
        self.finished += 1
        self._done += work
        self._counted += counted
        seconds = max(time.monotonic() - self._started, 1e-6)
        rate = self._counted / seconds
        line = f"{self.name} {self.finished} of {self.total}: {result}, "
        line += f"{rate:,.1f} {self.unit}/s" if rate < 100 else f"{rate:,.0f} {self.unit}/s"
        if self.finished < self.total and self._done:
            left = seconds * (self.work - self._done) / self._done
            line += f", {timedelta(seconds=round(left))} left"
        self.say(line)


class Workspace:
    """Where a dataset is made: its finished shards, and ``work/`` for intermediate files.

    On a file system both are in ``<output>.partial``, which :meth:`publish` renames to the output's
    name, so that a reader never sees an incomplete dataset. A bucket cannot rename a directory:
    there the shards are written to the output itself, and ``provenance.json``, without which no
    reader takes it for a dataset, comes last.

    A context manager that holds a lock, so that two processes never make one dataset. The directory
    survives an exception: the next run resumes there. Only after a user's mistake it goes, if it
    holds nothing that a corrected run could use.
    """

    def __init__(
        self, output: epath.PathLike, *, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self.output = epath.Path(output)
        partial = self.output.with_name(self.output.name + ".partial")
        self.partial = self.output if is_remote(self.output) else partial
        self.work = partial / "work"
        self._lock = lock_at(self.output.with_name(self.output.name + ".lock"), say=say)
        self._is_ours = False  # what is in the directory is of this run's settings

    def __enter__(self) -> Self:
        with write_errors(self.output):
            self.output.parent.mkdir(parents=True, exist_ok=True)
            if not self._lock.take():
                raise UserError(
                    f"{self.output}: another run is making this dataset "
                    f"({self._lock.holder or 'it'} holds {self.output}.lock); wait for it"
                )
            try:
                self._prepare()
            except BaseException:
                self._lock.give_back()
                raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            # Another process may have taken a lock in a bucket: then the directory is its.
            with contextlib.suppress(RunStopped, OSError):
                if isinstance(error, UserError):
                    self._lock.check()
                    self._tidy(is_useless=isinstance(error, UnusableText))
        finally:
            self._lock.give_back()

    @property
    def is_begun(self) -> bool:
        """Whether there is an unfinished run to resume."""
        return (self.work / _SETTINGS).exists()

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Refuses to resume an unfinished run with different settings.

        Settings that nothing finished depends on may change. So may `validation_fraction` until
        there is a shard, since the text has to be tokenised to know that it is too small; what
        depends on it is then made again. Raises UserError: naming the first setting that differs,
        or that another version began it.
        """
        path = self.work / _SETTINGS
        text = json.dumps({"work_version": _WORK_VERSION, **settings}, indent=1, sort_keys=True)
        # A run that failed before it made anything need not be resumed.
        if path.exists() and any(made.name != _SETTINGS for made in self.work.iterdir()):
            held = read_json_object(path)
            if held.get("work_version") != _WORK_VERSION:
                raise UserError(
                    f"{self.partial}: holds an unfinished run of another version of bert-jax; "
                    "finish it with that version, or delete the directory"
                )
            self._keep_or_clear(held, json.loads(text))
        write_whole(path, text)
        self._is_ours = True

    def _keep_or_clear(self, held: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
        """Leaves of an unfinished run what these settings can use; refuses to drop the rest."""
        changed = {key for key in asked if held.get(key) != asked[key]}
        if changed and not self._has_finished:
            self._clear()
            return
        free = frozenset() if self._has_shards else _OF_SHARDS | _OF_PARTS
        if fixed := changed - free:
            change = name_change(held, asked, fixed)
            raise UserError(
                f"{self.partial}: holds an unfinished run with other settings: {change}; "
                "finish that one, or delete the directory"
            )
        if changed & _OF_PARTS:
            for part in self.work.glob("part-*"):
                part.rmtree()

    @property
    def _has_shards(self) -> bool:
        return any(self.partial.glob("*.array_record*"))

    @property
    def _has_finished(self) -> bool:
        """Whether anything is there that took long to make, and is whole."""
        made = (path for name in ("part-*", "spill-*") for path in self.work.glob(name))
        return self._has_shards or any(map(is_made, made))

    def _tidy(self, *, is_useless: bool) -> None:
        """Removes what no run could resume, and a directory with nothing in it."""
        if self._is_ours and not self._has_shards and (is_useless or not self._has_finished):
            self._clear()
        if not is_remote(self.output):
            for directory in (self.work, self.partial):
                pathlib.Path(directory).rmdir()  # refused where there is something

    def _clear(self) -> None:
        self.work.rmtree(missing_ok=True)
        if not is_remote(self.output):
            self.work.mkdir()

    def publish(self) -> None:
        """Drops ``work/`` and gives the directory its final name.

        Raises RunStopped: another process has taken the lock.
        """
        self._lock.check()
        if is_remote(self.output):
            self.work.rmtree()
            return
        # Renamed first: if this is interrupted, half of work/ would pass for an unfinished run.
        gone = unfinished(pathlib.Path(self.work))
        self.work.rename(gone)
        shutil.rmtree(gone)
        pathlib.Path(self.partial).rename(self.output)  # also over an empty directory

    def _prepare(self) -> None:
        if (self.output / PROVENANCE_NAME).exists():
            raise UserError(f"{self.output}: another run has made this dataset just now; run again")
        if is_remote(self.output):  # a bucket has no empty directories
            return
        self.work.mkdir(parents=True, exist_ok=True)
        for directory in (self.partial, self.work):
            remove_unfinished(pathlib.Path(directory))


class DatasetBuild(NamedTuple):
    """One call of `make_examples` at work: what all stages share."""

    section: ExamplesSection
    workspace: Workspace
    engine: Engine
    say: Callable[[str], None]  # gets a line of text when a part or a shard is finished
