"""Writes and reads the arrays and the progress of a checkpoint. The only file that uses Orbax.

If a save fails in one process, it fails in all processes within seconds (`SaveAgreement`). With
Orbax's `CheckpointManager`, the other processes would wait 20 minutes, so this file uses
`AsyncCheckpointer` (docs/adr/0005).
"""

import contextlib
import errno
import functools
import logging
import os
import shutil
from collections.abc import Collection, Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import logging as absl_logging
from etils import epath

from bert_jax.errors import RunStopped, UserError
from bert_jax.files.atomic import why_not_written
from bert_jax.files.remote import is_remote
from bert_jax.parallel.channel import current_channel
from bert_jax.train.agree_with_first_process import failure_of, first_failure
from bert_jax.train.checkpoint_manifest import (
    EMA,
    OPTIMIZER,
    PARAMS,
    PROGRESS,
    SelectionScore,
    write_manifest,
)
from bert_jax.train.checkpoint_retention import TEMPORARY, delete_checkpoint
from bert_jax.train.state import named

# Devices that hold replicas of an array each save a slice. Each slice shape needs a compiled
# program, so one device saves an array smaller than this in full.
MIN_SLICE_BYTES: Final = 64 * 2**10
# TensorStore raises ValueError, JAX RuntimeError, our storage clients UserError and RunStopped.
_SAVE_ERRORS: Final = (OSError, ValueError, RuntimeError, UserError, RunStopped)
_BARRIERS: Final = 2  # per save: after writing the files, and after renaming the directory
_BARRIER_SECONDS: Final = 1200.0  # Orbax's own limit


class SaveFailed(Exception):
    """A checkpoint could not be saved. The message is the same on all processes."""


class OrbaxFiles:
    """Writes checkpoints in background threads, one at a time, and reads them."""

    def __init__(self, *, save_bytes: int | None) -> None:
        """Opens no file. See `Checkpointer` for `save_bytes`."""
        self._arrays = _array_handler(save_bytes)
        self._agreement = SaveAgreement()
        registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
        for item in (PARAMS, EMA, OPTIMIZER):
            registry.add(item, ocp.args.PyTreeSave, self._arrays)
        registry.add(PROGRESS, ocp.args.JsonSave, ocp.JsonCheckpointHandler())
        # Orbax's metadata store would change a file after the manifest has recorded its hash.
        self._saver = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(handler_registry=registry),
            async_options=ocp.options.AsyncOptions(
                barrier_sync_fn=self._agreement,
                # Called in the first process, after all files are final and before the commit.
                post_finalization_callback=lambda: self._write_manifest(),
            ),
            checkpoint_metadata_store=ocp.metadata.metadata_store(
                enable_write=False, blocking_write=True
            ),
        )
        # Both loggers would print the traceback of a failed save several times.
        absl_logging.set_verbosity(absl_logging.FATAL)
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)

    def start(
        self,
        directory: epath.Path,
        items: Mapping[str, Any],
        *,
        step: int,
        score: SelectionScore | None,
        params: str | None,
    ) -> None:
        """Starts to write a checkpoint and replaces an existing one; every process must call it.

        Args:
            directory: path of the checkpoint.
            items: item by name. Parameters and optimizer are nested dicts of arrays; the progress
                is plain JSON.
            step: step for the manifest.
            score: score for the manifest.
            params: hash of the parameters for the manifest.

        Raises:
            SaveFailed: the save could not begin.
        """
        if is_remote(directory):
            written = directory
            prepare = functools.partial(_make_way, directory)
        else:
            written = directory.with_name(f"{directory.name}{TEMPORARY}")
            prepare = functools.partial(_check_room, written, items)
        if (reason := failure_of(prepare)) is not None:
            raise SaveFailed(reason)
        self._write_manifest = functools.partial(
            write_manifest, written, step=step, score=score, params=params
        )
        self._agreement.begin()
        args = {
            name: (ocp.args.JsonSave if name == PROGRESS else ocp.args.PyTreeSave)(item)
            for name, item in items.items()
        }
        with self._failing():
            # `force` replaces a damaged or unfinished checkpoint on a disk.
            self._saver.save(directory, args=ocp.args.Composite(**args), force=True)

    def finish(self) -> None:
        """Waits until all processes have written the checkpoint; raises SaveFailed if one fails."""
        with self._failing():
            self._saver.wait_until_finished()

    @contextlib.contextmanager
    def _failing(self) -> Any:
        try:
            yield
        except (*_SAVE_ERRORS, *_google_errors()) as error:
            raise SaveFailed(self._agreement.fail(why_not_written(error))) from error

    def read_arrays(
        self,
        directory: epath.Path,
        wanted: Any,
        *,
        stored: Mapping[str, Any],
        skippable: Collection[str] = (),
    ) -> Any:
        """Returns an item's arrays with the shapes, dtypes and shardings of `wanted`.

        Every process must call it. `stored` are the item's `parts`; `wanted` may lack those in
        `skippable`. Raises UserError if another tensor is unexpected, or a tensor is missing, not
        finite, or has another shape or dtype.
        """
        skipped = set(skippable) - set(wanted)
        read = {part: tensors for part, tensors in stored.items() if part not in skipped}
        _check_tensors(read, wanted, where=directory)
        args = ocp.args.PyTreeRestore(
            wanted,
            restore_args=ocp.checkpoint_utils.construct_restore_args(wanted),
            partial_restore=len(read) < len(stored),
        )
        restored = self._arrays.restore(directory, args=args)
        # The devices check the arrays; only one flag per array is copied to the host.
        leaves = [
            (n, leaf) for n, leaf in named(restored) if jnp.issubdtype(leaf.dtype, jnp.floating)
        ]
        finite = jax.device_get(_all_finite([leaf for _, leaf in leaves]))
        for (name, _), sound in zip(leaves, finite, strict=True):
            if not sound:
                raise UserError(
                    "checkpoint.not_finite", f"tensor {name} has NaN or infinity", place=directory
                )
        return restored

    def parts(self, directory: epath.Path) -> Mapping[str, Any]:
        """Returns the parts of an item of arrays, with metadata in place of the arrays."""
        found: Any = self._arrays.metadata(directory)
        return found

    def read_json(self, directory: epath.Path) -> Mapping[str, Any]:
        """Returns an item of plain JSON."""
        return ocp.JsonCheckpointHandler().restore(directory)

    def close(self) -> None:
        """Ends the threads."""
        self._saver.close()


class SaveAgreement:
    """The barriers of a save, at which a failed process reports the reason of the failure.

    At Orbax's own barriers, the other processes would wait 20 minutes for a failed process.
    """

    def __init__(self) -> None:
        self._save = 0  # number of saves begun, equal on all processes
        self._passed = 0  # number of barriers passed in this save
        self._failure: str | None = None  # reason of the failure, set at a barrier

    def begin(self) -> None:
        """Begins another save; every process must call it."""
        self._save, self._passed, self._failure = self._save + 1, 0, None

    def __call__(self, *, key: str, timeout_ms: int) -> None:
        """Waits for all processes. Orbax calls it in its own threads.

        Raises TimeoutError if a process does not arrive, and RuntimeError if the save failed on a
        process.
        """
        self._meet(None, timeout=timeout_ms / 1000)
        if self._failure is not None:
            raise RuntimeError(self._failure)

    def fail(self, reason: str) -> str:
        """Reports a failure of this process; returns the reason that all processes report."""
        if jax.process_count() > 1 and self._failure is None and self._passed < _BARRIERS:
            with contextlib.suppress(TimeoutError):
                self._meet(reason, timeout=_BARRIER_SECONDS)
        return self._failure or reason

    def _meet(self, reason: str | None, *, timeout: float) -> None:
        if (channel := current_channel()) is not None:
            self._passed += 1
            about = f"save {self._save}.{self._passed}"
            self._failure = first_failure(channel.exchange(reason, about=about, timeout=timeout))


def _array_handler(save_bytes: int | None) -> ocp.PyTreeCheckpointHandler:
    # Orbax's unit is 10⁹ bytes; fractions are allowed.
    limit: dict[str, Any] = {} if save_bytes is None else {"save_concurrent_gb": save_bytes / 1e9}
    arrays = ocp.type_handlers.create_type_handler_registry(
        (
            jax.Array,
            ocp.type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=MIN_SLICE_BYTES),
        ),
        (np.ndarray, ocp.type_handlers.NumpyHandler()),
    )
    return ocp.PyTreeCheckpointHandler(type_handler_registry=arrays, **limit)


def _google_errors() -> tuple[type[Exception], ...]:
    """Returns the base class of errors of Google's client, which Orbax uses beside ours."""
    try:
        from google.api_core.exceptions import GoogleAPIError  # slow to import; an extra
    except ImportError:
        return ()
    return (GoogleAPIError,)


def _make_way(directory: epath.Path) -> None:
    """Deletes a damaged or unfinished checkpoint in a bucket.

    If Orbax deleted it, it would also request the bucket's metadata, which roles/storage.objectUser
    does not allow.
    """
    if jax.process_index() == 0:
        delete_checkpoint(directory)


def _check_room(directory: epath.Path, items: Mapping[str, Any]) -> None:
    """Raises OSError if the directory cannot be created or this process's shards do not fit."""
    if jax.process_index() == 0 and not directory.exists():
        directory.mkdir(parents=True)
        directory.rmdir()
    arrays = [leaf for leaf in jax.tree.leaves(items) if isinstance(leaf, jax.Array)]
    shards = [shard for array in arrays for shard in array.addressable_shards]
    needed = sum(shard.data.nbytes for shard in shards if shard.replica_id == 0)
    if shutil.disk_usage(directory.parent).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _check_tensors(found: Any, wanted: Any, *, where: epath.Path) -> None:
    """Raises UserError if names, shapes or dtypes differ.

    Orbax would convert dtypes silently and report wrong shapes late.
    """
    have_by_name, want_by_name = dict(named(found)), dict(named(wanted))
    for name in sorted(want_by_name.keys() | have_by_name.keys()):
        if name not in have_by_name:
            raise UserError("checkpoint.tensor_missing", f"tensor {name} is missing", place=where)
        if name not in want_by_name:
            raise UserError(
                "checkpoint.tensor_unknown", f"tensor {name} is not part of the model", place=where
            )
        have, want = have_by_name[name], want_by_name[name]
        if tuple(have.shape) != tuple(want.shape) or have.dtype != want.dtype:
            raise UserError(
                "checkpoint.tensor_form",
                f"tensor {name} is {have.dtype}{[*have.shape]}, not {want.dtype}{[*want.shape]}",
                place=where,
            )


@jax.jit
def _all_finite(leaves: list[jax.Array]) -> list[jax.Array]:
    return [jnp.isfinite(leaf).all() for leaf in leaves]
