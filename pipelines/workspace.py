"""The directory that a dataset is made in, until it is whole."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import shutil
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final

from bert_jax.errors import UserError
from pipelines.disk import disk_errors, remove_unfinished, write_aside

_LOCK: Final = ".lock"


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
        self._lock: int | None = None

    def __enter__(self) -> Workspace:
        with disk_errors(self.partial):
            self.work.mkdir(parents=True, exist_ok=True)
            self._lock = self._take_lock()
            for directory in (self.partial, self.work):
                remove_unfinished(directory)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)

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
        gone = self.partial / "work.gone"
        shutil.rmtree(gone, ignore_errors=True)
        self.work.rename(gone)
        shutil.rmtree(gone)
        self.partial.rename(self.output)
        (self.output / _LOCK).unlink()

    def _take_lock(self) -> int:
        path = self.partial / _LOCK
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between the two calls above the other run may have published the directory.
            if not path.exists() or not os.path.samestat(os.fstat(lock), os.stat(path)):
                raise BlockingIOError
        except BlockingIOError as error:
            os.close(lock)
            raise UserError(
                f"{self.output}: another run is making this dataset (it holds {path}); wait for it"
            ) from error
        return lock


def shorten(value: Any) -> str:
    """Returns a setting's value for a message, cut if it is long."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
