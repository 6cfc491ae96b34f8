"""The files of a checkpoint: arrays and progress, written and read. The only file with Orbax.

What fails on one process of a job fails on all, in seconds: see `SaveAgreement`. That is why this
uses Orbax's `AsyncCheckpointer` and not its manager, which waits 20 minutes (docs/adr/0005).
"""

import errno
import functools
import logging
import os
import shutil
from collections.abc import Mapping
from typing import Any, Final

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging as absl_logging
from etils import epath

from bert_jax.errors import RunStopped, UserError
from bert_jax.files.atomic import why_not_written
from bert_jax.files.remote import is_remote
from bert_jax.train.agreement import SaveAgreement, failure_of
from bert_jax.train.checkpoint_directory import TEMPORARY
from bert_jax.train.manifest import OPTIMIZER, PARAMS, PROGRESS, SelectionScore, write_manifest

# Devices that hold the same array each save a part of it. Cutting a part out is a program that has
# to be compiled for the array's shape: below this size one device saves it whole.
MIN_SLICE_BYTES: Final = 64 * 2**10
# TensorStore raises ValueErrors, JAX RuntimeErrors, and our own clients the last two.
_SAVE_ERRORS: Final = (OSError, ValueError, RuntimeError, UserError, RunStopped)


class SaveFailed(Exception):
    """A checkpoint could not be saved; on all processes, for the one reason that this says."""


class OrbaxFiles:
    """Writes checkpoints in threads of its own, one at a time, and reads them."""

    def __init__(self, *, save_bytes: int | None) -> None:
        """Opens nothing yet; see `Checkpointer` for `save_bytes`."""
        self._arrays = _array_handler(save_bytes)
        self._agreement = SaveAgreement()
        registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
        for item in (PARAMS, OPTIMIZER):
            registry.add(item, ocp.args.PyTreeSave, self._arrays)
        registry.add(PROGRESS, ocp.args.JsonSave, ocp.JsonCheckpointHandler())
        # No metadata store: its file would change after the manifest, which says all that is in it.
        self._saver = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(handler_registry=registry),
            async_options=ocp.options.AsyncOptions(
                barrier_sync_fn=self._agreement,
                # In the first process, when the files of all are final and before the commit.
                post_finalization_callback=lambda: self._write_manifest(),
            ),
            checkpoint_metadata_store=ocp.metadata.metadata_store(
                enable_write=False, blocking_write=True
            ),
        )
        # Both log the traceback of a failed save, several times, beside the error that is raised.
        absl_logging.set_verbosity(absl_logging.FATAL)
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)

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
        written = directory
        if not is_remote(directory):
            written = directory.with_name(f"{directory.name}{TEMPORARY}")
            if (reason := failure_of(functools.partial(_check_room, written, items))) is not None:
                raise SaveFailed(reason)
        self._write_manifest = functools.partial(write_manifest, written, step=step, score=score)
        self._agreement.begin()
        args = {
            name: (ocp.args.JsonSave if name == PROGRESS else ocp.args.PyTreeSave)(item)
            for name, item in items.items()
        }
        try:
            # `force`: what lies there is damaged, or was never finished.
            self._saver.save(directory, args=ocp.args.Composite(**args), force=True)
        except _SAVE_ERRORS as error:
            raise SaveFailed(self._agreement.fail(why_not_written(error))) from error

    def finish(self) -> None:
        """Waits until the checkpoint is whole, written by all processes.

        Raises SaveFailed: it is not, on any of them.
        """
        try:
            self._saver.wait_until_finished()
        except _SAVE_ERRORS as error:
            raise SaveFailed(self._agreement.fail(why_not_written(error))) from error

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


def _check_room(directory: epath.Path, items: Mapping[str, Any]) -> None:
    """Finds two failures before they leave half a save behind; raises OSError.

    The first process must be able to make the directory, since the other processes wait for it.
    The disk must have room for this process's part of the arrays.
    """
    if jax.process_index() == 0 and not directory.exists():
        directory.mkdir(parents=True)
        directory.rmdir()
    arrays = [leaf for leaf in jax.tree.leaves(items) if isinstance(leaf, jax.Array)]
    shards = [shard for array in arrays for shard in array.addressable_shards]
    needed = sum(shard.data.nbytes for shard in shards if shard.replica_id == 0)
    if shutil.disk_usage(directory.parent).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
