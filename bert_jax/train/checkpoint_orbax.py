"""The files of a checkpoint: arrays and progress, written and read. The only file with Orbax.

What fails on one process of a job fails on all, in seconds: see `SaveAgreement`.
"""

import functools
import logging
import sys
import traceback
import warnings
from collections.abc import Mapping
from typing import Any, Final

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint._src.futures import future, synchronization

from bert_jax.errors import RunStopped, UserError
from bert_jax.files.atomic import why_not_written
from bert_jax.train.agreement import SaveAgreement
from bert_jax.train.manifest import OPTIMIZER, PARAMS, PROGRESS, SelectionScore, write_manifest

# Devices that hold the same array each save a part of it. Cutting a part out is a program that has
# to be compiled for the array's shape: below this size one device saves it whole.
MIN_SLICE_BYTES: Final = 64 * 2**10
# TensorStore raises ValueErrors, JAX RuntimeErrors, and our own clients the last two.
_SAVE_ERRORS: Final = (OSError, ValueError, RuntimeError, UserError, RunStopped)

# Orbax logs the traceback of a failed save up to six times, and then raises what has been logged.
logging.getLogger("absl").addFilter(lambda record: "/orbax/" not in record.pathname)


class SaveFailed(Exception):
    """A checkpoint could not be saved; on all processes, for the one reason that this says."""


class OrbaxFiles:
    """Writes checkpoints in threads of its own, one at a time, and reads them."""

    def __init__(self, *, save_bytes: int | None) -> None:
        """Opens nothing yet; see `Checkpointer` for `save_bytes`."""
        self._arrays = _array_handler(save_bytes)
        self._manifests = _ManifestWriter(self._arrays)
        self._agreement = SaveAgreement()
        # No metadata store: its file would change after the manifest, which says all that is in it.
        self._saver = ocp.AsyncCheckpointer(
            self._manifests,
            async_options=ocp.options.AsyncOptions(barrier_sync_fn=self._agreement),
            checkpoint_metadata_store=ocp.metadata.metadata_store(
                enable_write=False, blocking_write=True
            ),
        )
        quieten_failed_saves()

    def start(
        self,
        directory: epath.Path,
        items: Mapping[str, Any],
        *,
        step: int,
        score: SelectionScore | None,
    ) -> None:
        """Starts to write a checkpoint, in place of what lies there; each process must call it.

        `items` are nested dicts of arrays, and the progress as plain JSON, by name; step and score
        are for the manifest. Raises SaveFailed: here. It may also fail from now on, see `finish`.
        """
        self._manifests.step, self._manifests.score = step, score
        self._agreement.begin()
        args = {
            name: (ocp.args.JsonSave if name == PROGRESS else ocp.args.PyTreeSave)(item)
            for name, item in items.items()
        }
        try:
            # `force`: what lies there is damaged, or was never finished.
            self._saver.save(directory, args=_Items(**args), force=True)
        except _SAVE_ERRORS as error:
            raise self._failed(error) from error

    def finish(self) -> None:
        """Waits until the checkpoint is whole, written by all processes.

        Raises SaveFailed: it is not, on any of them.
        """
        try:
            self._saver.wait_until_finished()
        except _SAVE_ERRORS as error:
            raise self._failed(error) from error

    def tensors(self, directory: epath.Path) -> Any:
        """Returns nested dicts of what an item's arrays are: shapes and dtypes."""
        return self._arrays.metadata(directory)

    def read_arrays(self, directory: epath.Path, wanted: Any) -> Any:
        """Returns an item's arrays with the shapes, dtypes and shardings of `wanted`."""
        args = ocp.checkpoint_utils.construct_restore_args(wanted)
        return self._arrays.restore(
            directory, args=ocp.args.PyTreeRestore(wanted, restore_args=args)
        )

    def read_json(self, directory: epath.Path) -> Mapping[str, Any]:
        """Returns an item of plain JSON."""
        return ocp.JsonCheckpointHandler().restore(directory)

    def close(self) -> None:
        """Ends the threads."""
        self._saver.close()

    def _failed(self, error: Exception) -> SaveFailed:
        """Returns when all processes have given up the save."""
        if jax.process_count() > 1:
            # The others may still wait for a directory that this process was to make.
            future.set_signals(
                [
                    synchronization.HandlerAwaitableSignal.STEP_DIRECTORY_CREATION,
                    synchronization.HandlerAwaitableSignal.ITEM_DIRECTORY_CREATION,
                ],
                operation_id=synchronization.OperationIdGenerator.get_current_operation_id(),
            )
        return SaveFailed(self._agreement.fail(why_not_written(error)))


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


# Of the directory that Orbax writes to before the checkpoint gets its name.
_UNFINISHED: Final = ".orbax-checkpoint-tmp"


@functools.cache
def quieten_failed_saves() -> None:
    """Keeps from standard error what would bury the line on a failed save; once in a process.

    When one array cannot be written, Orbax gives up, and closes its event loop, while the others
    are under way. Each of them then ends in a traceback: Python's `asyncio` logs that nobody asked
    for its error, and TensorStore's callback finds the loop closed.
    """
    logging.getLogger("asyncio").addFilter(_is_news)
    warnings.filterwarnings("ignore", "coroutine 'async_serialize_from_host", RuntimeWarning)
    others = sys.unraisablehook

    def hook(raised: "sys.UnraisableHookArgs") -> None:
        if not _found_the_loop_closed(raised):
            others(raised)

    sys.unraisablehook = hook


def _is_news(record: logging.LogRecord) -> bool:
    """Says whether a record of asyncio's is anything but the error of an array not written."""
    error = record.exc_info[1] if record.exc_info else None
    unasked = "exception was never retrieved" in record.getMessage()
    return not (unasked and _UNFINISHED in str(error))


def _found_the_loop_closed(raised: "sys.UnraisableHookArgs") -> bool:
    """Says whether it was a callback from another library that came after the loop's end."""
    if raised.object is not None or str(raised.exc_value) != "Event loop is closed":
        return False
    frames = traceback.extract_tb(raised.exc_traceback)
    return bool(frames) and frames[0].name == "call_soon_threadsafe"
