"""The directory that a dataset is made in, until it is whole."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from bert_jax.errors import UserError
from pipelines.disk import disk_errors, remove_unfinished, unfinished, write_aside
from pipelines.lock import FileLock


class Workspace:
    """``<output>.partial``: finished shards, and ``work/`` for what goes when the dataset is whole.

    A context manager that holds a lock, so that two processes never make one dataset. The directory
    survives an exception: the next run goes on where this one ended. :meth:`publish` renames it to
    the output's name, so a reader never sees a dataset in the making.
    """

    def __init__(self, output: pathlib.Path) -> None:
        self.output = output
        self.partial = output.with_name(output.name + ".partial")
        self.work = self.partial / "work"
        self._lock = FileLock(output.with_name(output.name + ".lock"))

    def __enter__(self) -> Workspace:
        with disk_errors(self.partial):
            self.output.parent.mkdir(parents=True, exist_ok=True)
            if not self._lock.take():
                raise UserError(
                    f"{self.output}: another run is making this dataset (it holds "
                    f"{self._lock.path}); wait for it"
                )
            try:
                self._prepare()
            except BaseException:
                self._lock.give_back()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.give_back()

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Makes sure that an earlier, unfinished run here was the same run.

        Args:
            settings: everything that decides the dataset's bytes, as JSON values.

        Raises:
            UserError: naming the first setting that differs.
        """
        path = self.work / "settings.json"
        spelled = json.dumps(settings, indent=1, sort_keys=True)
        if path.exists():
            held = json.loads(path.read_text())
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
        """Drops ``work/`` and gives the directory its final name."""
        # Renamed first: half of work/ would be taken for an unfinished run if this is interrupted.
        gone = unfinished(self.work)
        self.work.rename(gone)
        shutil.rmtree(gone)
        self.partial.rename(self.output)

    def _prepare(self) -> None:
        if self.output.exists() and any(self.output.iterdir()):
            raise UserError(f"{self.output}: another run has made this dataset just now; run again")
        self.work.mkdir(parents=True, exist_ok=True)
        for directory in (self.partial, self.work):
            remove_unfinished(directory)


def shorten(value: Any) -> str:
    """Returns a setting's value for a message, cut if it is long."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
