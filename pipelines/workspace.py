"""The directory that a dataset is made in, until it is whole."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any, Final

from etils import epath

from bert_jax.data.dataset.provenance import PROVENANCE_NAME
from bert_jax.errors import UserError
from bert_jax.files.atomic import disk_errors, remove_unfinished, unfinished, write_aside
from bert_jax.files.lock import lock_at
from bert_jax.files.remote import is_remote

_SETTINGS: Final = "settings.json"

# Of what an unfinished run leaves, and of how its parts are cut: only its own release goes on.
_WORK_VERSION: Final = 2


class Workspace:
    """Where a dataset is made: its finished shards, and ``work/`` for what goes when it is whole.

    On a file system both are in ``<output>.partial``, which :meth:`publish` renames to the output's
    name, so that a reader never sees a dataset in the making. A bucket cannot rename a directory:
    there the shards are written to the output itself, and ``provenance.json``, without which no
    reader takes it for a dataset, comes last.

    A context manager that holds a lock, so that two processes never make one dataset. The directory
    survives an exception: the next run goes on where this one ended.
    """

    def __init__(
        self, output: epath.PathLike, *, say: Callable[[str], None] = lambda line: None
    ) -> None:
        """Makes nothing yet.

        Args:
            output: directory of the dataset.
            say: called with a line of text when there is something to wait for.
        """
        self.output = epath.Path(output)
        partial = self.output.with_name(self.output.name + ".partial")
        self.partial = self.output if is_remote(self.output) else partial
        self.work = partial / "work"
        self._lock = lock_at(self.output.with_name(self.output.name + ".lock"), say=say)

    def __enter__(self) -> Workspace:
        with disk_errors(self.partial):
            self.output.parent.mkdir(parents=True, exist_ok=True)
            if not self._lock.take():
                raise UserError(
                    f"{self.output}: another run is making this dataset (it holds "
                    f"{self.output}.lock); wait for it"
                )
            try:
                self._prepare()
            except BaseException:
                self._lock.give_back()
                raise
        return self

    def __exit__(self, *raised: object) -> None:
        self._lock.give_back()

    @property
    def is_begun(self) -> bool:
        """Whether an earlier run has left something to go on with."""
        return (self.work / _SETTINGS).exists()

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Makes sure that an earlier, unfinished run here was the same run.

        Args:
            settings: everything that decides the dataset's bytes, as JSON values.

        Raises:
            UserError: naming the first setting that differs, or that another release began it.
        """
        path = self.work / _SETTINGS
        spelled = json.dumps({"work_version": _WORK_VERSION, **settings}, indent=1, sort_keys=True)
        # A run that ended on a mistake before it had made anything is nobody's to finish.
        if path.exists() and any(made.name != _SETTINGS for made in self.work.iterdir()):
            held = json.loads(path.read_text())
            if held.get("work_version") != _WORK_VERSION:
                raise UserError(
                    f"{self.partial}: holds an unfinished run of another release of bert-jax; "
                    "finish it with that one, or delete the directory"
                )
            for key, value in json.loads(spelled).items():
                if held.get(key) != value:
                    raise UserError(
                        f"{self.partial}: holds an unfinished run in which {key} was "
                        f"{shorten(held.get(key))}, now {shorten(value)}; "
                        "finish that one, or delete the directory"
                    )
            return
        with disk_errors(path):
            write_aside(path, spelled)

    def publish(self) -> None:
        """Drops ``work/`` and gives the directory its final name.

        Raises:
            RunStopped: another process has taken the lock.
        """
        self._lock.check()
        if is_remote(self.output):
            self.work.rmtree()
            return
        # Renamed first: half of work/ would be taken for an unfinished run if this is interrupted.
        gone = unfinished(pathlib.Path(self.work))
        self.work.rename(gone)
        shutil.rmtree(gone)
        pathlib.Path(self.partial).rename(self.output)  # also over an empty directory

    def _prepare(self) -> None:
        if (self.output / PROVENANCE_NAME).exists():
            raise UserError(f"{self.output}: another run has made this dataset just now; run again")
        if is_remote(self.output):  # directories are there when something is in them
            return
        self.work.mkdir(parents=True, exist_ok=True)
        for directory in (self.partial, self.work):
            remove_unfinished(pathlib.Path(directory))


def shorten(value: Any) -> str:
    """Returns a setting's value for a message, cut if it is long."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
