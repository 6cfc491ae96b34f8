"""Saving and restoring a run. The only file that imports Orbax."""

from __future__ import annotations

import concurrent.futures
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from bert_jax.errors import RunStopped, UserError, first_line
from bert_jax.files.atomic import full_disk
from bert_jax.files.remote import is_remote
from bert_jax.task import Params
from bert_jax.train.checkpoint_directory import CheckpointDirectory
from bert_jax.train.checkpoint_store import OPTIMIZER, PARAMS, PROGRESS
from bert_jax.train.checkpoint_trees import check_tensors, optimizer_tree, with_optimizer
from bert_jax.train.failed_saves import quieten_failed_saves
from bert_jax.train.finite import refuse_non_finite
from bert_jax.train.manifest import SelectionScore, write_manifest
from bert_jax.train.sections import CheckpointSection
from bert_jax.train.state import TrainState

# Devices that hold the same array each save a part of it. Cutting a part out is a program that has
# to be compiled for the array's shape: below this size one device saves it whole.
MIN_SLICE_BYTES: Final = 64 * 2**10
# TensorStore's errors are ValueErrors, those of a barrier between processes RuntimeErrors.
SAVE_ERRORS: Final = (OSError, ValueError, RuntimeError)


# Orbax logs the traceback of a failed save up to six times, and then raises what has been logged.
logging.getLogger("absl").addFilter(lambda record: "/orbax/" not in record.pathname)


class Checkpointer:
    """The checkpoints of one run directory: ``checkpoints/<step>/{params,optimizer,progress}``.

    Parameters and optimizer are separate items of plain nested dicts, so that evaluation, export
    and fine-tuning read the parameters alone. Saving is asynchronous; leaving the context waits.
    Nothing is restored before its files were compared with the checkpoint's manifest.
    """

    def __init__(
        self,
        directory: epath.PathLike,
        section: CheckpointSection,
        *,
        read_only: bool = False,
        save_bytes: int | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        """Opens the directory, and makes it unless it is to be read only.

        Args:
            directory: local or gs://.
            section: what to keep, and what to do when a save fails.
            read_only: whether the directory is left alone; it need not exist then.
            save_bytes: how much may be on its way to the disk at a time, at least the largest
                array; None for Orbax's own limit.
            say: called with a line about a checkpoint that is not whole, or was not saved.

        Raises:
            UserError: a file lies there.
        """
        # Orbax refuses a relative path, and only once it writes.
        path = epath.Path(directory)
        self._path = path if is_remote(path) else path.resolve()
        self._section, self._say = section, say
        self._found = CheckpointDirectory(self._path, say=say)
        if not read_only:
            self._path.mkdir(parents=True, exist_ok=True)
            self._found.sweep()
            quieten_failed_saves()
        self._arrays = _array_handler(save_bytes)
        self._manifests = _ManifestWriter(self._arrays)
        # No metadata store: its file would change after the manifest, which says all that is in it.
        self._saver = ocp.AsyncCheckpointer(
            self._manifests,
            checkpoint_metadata_store=ocp.metadata.metadata_store(
                enable_write=False, blocking_write=True
            ),
        )
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving: tuple[int, concurrent.futures.Future[None]] | None = None
        self._failed: RunStopped | None = None  # of the last save, if it did

    def latest_step(self) -> int | None:
        """Returns the step of the newest whole checkpoint, all of its files compared.

        Raises:
            UserError: there are checkpoints, and none is whole.
        """
        self._settle()
        return self._found.newest(None)

    def latest_params(self) -> int | None:
        """Returns the step of the newest checkpoint whose parameters are whole.

        Raises:
            UserError: there are checkpoints, and none is whole.
        """
        self._settle()
        return self._found.newest((PARAMS,))

    def best_step(self) -> int | None:
        """Returns the step of the best checkpoint whose parameters are whole; None without one."""
        self._settle()
        return self._found.best((PARAMS,))

    def all_steps(self) -> list[int]:
        """Returns the steps of all finished checkpoints, oldest first; files are not compared."""
        self._settle()
        return self._found.steps()

    def problem(self, step: int) -> str | None:
        """Returns what is wrong with a checkpoint; None if every file is what was saved."""
        self._settle()
        return self._found.problem(step)

    def save(
        self,
        state: TrainState,
        *,
        step: int,
        progress: Mapping[str, Any],
        selection_score: SelectionScore | None = None,
    ) -> None:
        """Starts saving the state as `step`; the next save or leaving the context waits for it.

        Raises:
            RunStopped: this or the save before failed, and `on_error` is `stop`.
        """
        items = {
            PARAMS: ocp.args.PyTreeSave(state.params),
            OPTIMIZER: ocp.args.PyTreeSave(optimizer_tree(state)),
            PROGRESS: ocp.args.JsonSave(dict(progress)),
        }
        self._save(step, items, selection_score)

    def save_local(self, state: TrainState, *, step: int, progress: Mapping[str, Any]) -> None:
        """Does nothing: see `bert_jax.train.checkpoint_tiers`."""

    def not_saved(self, step: int, error: Exception) -> None:
        """See `CheckpointWriter`."""
        self._settle()
        if step not in self._found.steps():
            self._fail(step, error)
            self._stop_if_failed()

    def add_score(self, step: int, score: SelectionScore) -> None:
        """Says of a whole checkpoint how an evaluation that came later ranks it."""
        self._settle()
        self._found.add_score(step, score)

    def save_params(
        self, params: Params, *, step: int, selection_score: SelectionScore | None = None
    ) -> None:
        """Saves parameters alone: all there is of an imported model, or of a sweep's best."""
        self._save(step, {PARAMS: ocp.args.PyTreeSave(params)}, selection_score)

    def restore_optimizer(self, abstract: TrainState, *, step: int) -> TrainState:
        """Reads everything but the parameters, which stay as `abstract` has them.

        Raises:
            UserError: a file is damaged, or a tensor is missing, unexpected, not finite, or of
                another shape or dtype.
        """
        saved = self._restore(optimizer_tree(abstract), step=step, item=OPTIMIZER)
        return with_optimizer(abstract, saved)

    def has_optimizer(self, step: int) -> bool:
        """Says whether a checkpoint is more than parameters."""
        self._settle()
        return self._found.has(step, OPTIMIZER)

    def progress(self, step: int) -> Mapping[str, Any]:
        """Returns a checkpoint's progress as plain JSON, ``{}`` if it is parameters alone."""
        self._settle()
        if not self._found.has(step, PROGRESS):
            return {}
        self._found.require(step, (PROGRESS,))
        return ocp.JsonCheckpointHandler().restore(self._path / str(step) / PROGRESS)

    def restore_params(self, abstract_params: Params, *, step: int) -> Params:
        """Reads the parameters alone.

        Raises:
            UserError: a file is damaged, or a tensor is missing, unexpected, not finite, or of
                another shape or dtype.
        """
        return self._restore(abstract_params, step=step, item=PARAMS)

    def wait(self) -> None:
        """Waits until everything saved is whole on disk.

        Raises:
            RunStopped: the last save failed, whatever `on_error` says.
        """
        self._settle()
        if self._failed is not None:
            raise self._failed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            if raised[0] is None:
                self.wait()
            else:
                self._settle()
        finally:
            self._thread.shutdown()
            self._saver.close()

    def _save(
        self, step: int, items: Mapping[str, Any], selection_score: SelectionScore | None
    ) -> None:
        self._settle()
        self._stop_if_failed()
        if step in self._found.steps() and self._found.problem(step) is None:
            return
        self._manifests.step, self._manifests.score = step, selection_score
        try:
            # `force`: what lies there is damaged, or was never finished.
            self._saver.save(self._path / str(step), args=_Items(**items), force=True)
        except SAVE_ERRORS as error:
            self._fail(step, error)
            self._stop_if_failed()
            return
        finish = self._thread.submit(self._finish, step, list(items), selection_score)
        self._saving = step, finish

    def _finish(self, step: int, parts: list[str], score: SelectionScore | None) -> None:
        """Waits until a checkpoint is whole, and only then deletes those not to be kept."""
        self._saver.wait_until_finished()
        self._found.add(step, parts, score)
        self._found.retire(self._section)

    def _settle(self) -> None:
        """Waits for the save under way, and keeps its failure."""
        if self._saving is None:
            return
        (step, finish), self._saving = self._saving, None
        try:
            finish.result()
            self._failed = None
        except SAVE_ERRORS as error:
            self._fail(step, error)

    def _fail(self, step: int, error: Exception) -> None:
        """Clears up after a failed save; whatever its cause, there is no such checkpoint."""
        self._found.forget(step)
        steps = self._found.steps()
        last = f"the last one is {steps[-1]}" if steps else "there is none before it"
        reason = full_disk(error) or first_line(error)
        text = f"{self._path}: checkpoint {step} was NOT SAVED ({reason}); {last}"
        self._failed = RunStopped(text)
        self._failed.__cause__ = error
        if self._section.on_error == "warn":
            self._say(f"{text}; training goes on")

    def _stop_if_failed(self) -> None:
        if self._failed is not None and self._section.on_error == "stop":
            raise self._failed

    def _restore(self, wanted: Any, *, step: int, item: str) -> Any:
        self._settle()
        where = self._path / str(step) / item
        if not self._found.has(step, item):
            raise UserError(f"{where}: no such item in the checkpoint")
        self._found.require(step, (item,))
        check_tensors(self._arrays.metadata(where), wanted, where=where)
        restored = self._arrays.restore(where, args=_restore_args(wanted))
        refuse_non_finite(restored, where=str(where))
        return restored


class _ManifestWriter(ocp.CompositeCheckpointHandler):
    """Saves the items, and writes the manifest when the files of all processes are final.

    Orbax calls `finalize` in the first process, in its own thread, before it renames the directory
    (or, in a bucket, writes its marker) and lets the other processes go on.
    """

    def __init__(self, arrays: ocp.PyTreeCheckpointHandler) -> None:
        registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
        for item in (PARAMS, OPTIMIZER):
            registry.add(item, ocp.args.PyTreeSave, arrays)
        registry.add(PROGRESS, ocp.args.JsonSave, ocp.JsonCheckpointHandler())
        super().__init__(handler_registry=registry)
        self.step = 0
        self.score: SelectionScore | None = None

    def metadata_from_temporary_paths(self, directory: epath.Path) -> ocp.metadata.StepMetadata:
        """Says nothing: Orbax would warn that there is no metadata file to put it into."""
        return ocp.metadata.StepMetadata()

    def finalize(self, directory: epath.Path) -> None:
        """Makes every file final, then says in the manifest what they are."""
        super().finalize(directory)
        write_manifest(directory, step=self.step, score=self.score)


@ocp.args.register_with_handler(_ManifestWriter, for_save=True, for_restore=True)
class _Items(ocp.args.Composite):
    """The items of one checkpoint, which Orbax tells by their class to belong to the above."""


def _array_handler(save_bytes: int | None) -> ocp.PyTreeCheckpointHandler:
    # Orbax counts in 10⁹ bytes, and takes fractions.
    limit: dict[str, Any] = {} if save_bytes is None else {"save_concurrent_gb": save_bytes / 1e9}
    arrays = ocp.type_handlers.create_type_handler_registry(
        (
            jax.Array,
            ocp.type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=MIN_SLICE_BYTES),
        ),
        (np.ndarray, ocp.type_handlers.NumpyHandler()),
    )
    return ocp.PyTreeCheckpointHandler(type_handler_registry=arrays, **limit)


def _restore_args(wanted: Any) -> ocp.args.PyTreeRestore:
    """Asks for arrays with the shapes, dtypes and shardings of `wanted`."""
    return ocp.args.PyTreeRestore(
        wanted, restore_args=ocp.checkpoint_utils.construct_restore_args(wanted)
    )
