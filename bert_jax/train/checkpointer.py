"""Saves and restores the checkpoints of a run."""

import concurrent.futures
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
from etils import epath

from bert_jax.errors import RunStopped, UserError
from bert_jax.files.remote import is_remote
from bert_jax.files.storage_retries import OUTAGE
from bert_jax.task import DELTAS, TRAINING_PARTS, Params
from bert_jax.train.checkpoint_manifest import (
    EMA,
    IMPORTED,
    OPTIMIZER,
    PARAMS,
    PROGRESS,
    SelectionScore,
)
from bert_jax.train.checkpoint_orbax import OrbaxFiles, SaveFailed
from bert_jax.train.checkpoint_retention import CheckpointDirectory
from bert_jax.train.frozen import hash_params
from bert_jax.train.sections import CheckpointSection
from bert_jax.train.state import TrainState, copied


class Checkpointer:
    """The checkpoints of one run directory: ``checkpoints/<step>/{params,optimizer,progress}``.

    Parameters and optimizer are separate items, because evaluation, export and fine-tuning only
    read the parameters. A moving average of the parameters is a fourth item, ``ema``. Saves are
    asynchronous; leaving the context waits for them. Before a restore, the files are compared with
    the manifest. Arrays can be restored on any mesh: they get the sharding of the abstract arrays.
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
        """Opens the directory.

        Args:
            directory: local or gs:// path. Unless `read_only`, it is created if it is missing.
            section: settings.
            read_only: whether the directory must not change.
            save_bytes: maximum bytes written concurrently. An array larger than this is written
                alone. If None, Orbax's limit applies.
            say: prints a warning if a checkpoint is incomplete or could not be saved.

        Raises:
            UserError: the path is a file or cannot be read.
        """
        # Orbax would refuse a relative path, but only at the first save.
        path = epath.Path(directory)
        self._path = path if is_remote(path) else path.resolve()
        self._section, self._say = section, say
        self._found = CheckpointDirectory(self._path, say=say)
        if not read_only:
            self._path.mkdir(parents=True, exist_ok=True)
            self._found.sweep()
        self._files = OrbaxFiles(save_bytes=save_bytes)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving: concurrent.futures.Future[None] | None = None
        self._failed: RunStopped | None = None  # error of the last save, if it failed

    @property
    def on_disk(self) -> CheckpointDirectory:
        """The checkpoints on disk; waits for the current save.

        Raises RunStopped if the bucket does not answer. The train loop's thread and the signal
        handler's thread may both wait here.
        """
        if self._saving is not None:
            if is_remote(self._path):
                OUTAGE.result(self._saving)
            self._saving.result()
        return self._found

    def save(
        self,
        state: TrainState,
        *,
        step: int,
        progress: Mapping[str, Any],
        selection_score: SelectionScore | None = None,
    ) -> bool:
        """Starts to save a healthy state, with its progress as plain JSON.

        Returns whether the save began or the step was saved before. If `on_error` is `stop` and
        this or the previous save failed, raises RunStopped.
        """
        parts = {PARAMS: state.params, OPTIMIZER: _optimizer_item(state), PROGRESS: dict(progress)}
        if state.ema is not None:
            parts[EMA] = state.ema
        return self._save(step, parts, selection_score)

    def save_params(
        self, params: Params, *, step: int, selection_score: SelectionScore | None = None
    ) -> None:
        """Saves parameters without optimizer and progress."""
        self._save(step, {PARAMS: params}, selection_score)

    def not_saved(self, step: int, reason: str) -> None:
        """Reports that a save could not begin; every process must call it.

        Raises RunStopped if `on_error` is `stop`.
        """
        if step not in self.on_disk.steps():
            self._fail(step, SaveFailed(reason))
            self._stop_if_failed()

    def restore_state(self, abstract: TrainState, *, step: int) -> TrainState:
        """Restores parameters and optimizer with the shardings of `abstract`.

        If a checkpoint has no moving average but `abstract` has one, it begins with the parameters.
        Raises UserError like `restore_params`.
        """
        params, ema = self.restore_params(abstract.params, step=step), None
        if abstract.ema is not None:
            if self.on_disk.has(step, EMA):
                ema = self.restore_params(abstract.ema, step=step, item=EMA)
            else:
                ema = copied(params)
        return self.restore_optimizer(abstract, step=step)._replace(params=params, ema=ema)

    def restore_params(self, abstract_params: Params, *, step: int, item: str = PARAMS) -> Params:
        """Restores only the parameters, or their moving average with ``item=EMA``.

        Skips `TRAINING_PARTS` that `abstract_params` lacks, and adds the `DELTAS` among them to the
        parameters. Raises UserError if a file is damaged, or a tensor is missing, unexpected, not
        finite, or has another shape or dtype.
        """
        path, wanted = self._whole(step, item), dict(abstract_params)
        stored = self._files.parts(path)
        if DELTAS in stored and DELTAS not in wanted:
            wanted[DELTAS] = abstract_deltas(stored[DELTAS], abstract_params)
        found = self._files.read_arrays(path, wanted, stored=stored, skippable=TRAINING_PARTS)
        return found if DELTAS in abstract_params else with_deltas(found)

    def training_parts(self, step: int) -> Params:
        """Returns the `TRAINING_PARTS` of a checkpoint. Their leaves have a shape alone."""
        parts = self._files.parts(self._whole(step, PARAMS))
        return {part: parts[part] for part in TRAINING_PARTS if part in parts}

    def restore_optimizer(self, abstract: TrainState, *, step: int) -> TrainState:
        """Restores all but parameters and average; the result has the parameters of `abstract`."""
        path = self._whole(step, OPTIMIZER)
        stored = self._files.parts(path)
        saved = self._files.read_arrays(path, _optimizer_item(abstract), stored=stored)
        healthy = jax.device_put(jnp.ones((), jnp.bool_), abstract.healthy.sharding)
        return TrainState(saved["step"], saved["rng"], abstract.params, saved["state"], healthy)

    def progress(self, step: int) -> Mapping[str, Any]:
        """Returns a checkpoint's progress as plain JSON, or ``{}`` if it has only parameters."""
        if not self.on_disk.has(step, PROGRESS):
            return {}
        return self._files.read_json(self._whole(step, PROGRESS))

    def settle(self) -> None:
        """Waits for the current save; raises RunStopped if it failed and `on_error` is `stop`."""
        _ = self.on_disk
        self._stop_if_failed()

    def wait(self) -> None:
        """Waits until all saves are complete.

        Raises RunStopped if the last save failed, even if `on_error` is `warn`.
        """
        _ = self.on_disk
        if self._failed is not None:
            raise self._failed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            if raised[0] is None:
                self.wait()
            else:
                with contextlib.suppress(RunStopped):  # the block's error takes precedence
                    _ = self.on_disk
        finally:
            # Do not wait for a pending save: TensorStore may retry it forever.
            pending = self._saving is not None and not self._saving.done()
            self._thread.shutdown(wait=not pending)
            if not pending:
                self._files.close()

    def _save(
        self, step: int, items: Mapping[str, Any], selection_score: SelectionScore | None
    ) -> bool:
        self.settle()
        if step in self._found.steps() and self._found.problem(step) is None:
            return True
        try:
            self._files.start(
                self._path / str(step),
                items,
                step=step,
                score=selection_score,
                params=hash_params(items[PARAMS]) if _is_imported(items) else None,
            )
        except SaveFailed as error:
            self._fail(step, error)
            self._stop_if_failed()
            return False
        self._saving = self._thread.submit(self._finish, step, list(items), selection_score)
        return True

    def _finish(self, step: int, parts: list[str], score: SelectionScore | None) -> None:
        """Waits until a checkpoint is complete, and then deletes old ones."""
        try:
            self._files.finish()
        except SaveFailed as error:
            self._fail(step, error)
            return
        self._failed = None
        self._found.add(step, parts, score)
        self._found.retire(self._section)

    def _fail(self, step: int, error: SaveFailed) -> None:
        """Records and reports a failed save, and deletes its files."""
        self._found.sweep(failed=step)
        last = max(self._found.steps(), default="none")
        self._failed = RunStopped(
            "checkpoint.not_saved",
            f"checkpoint {step} was NOT SAVED ({error}). Last checkpoint: {last}.",
            place=self._path,
        )
        self._failed.__cause__ = error
        if self._section.on_error == "warn":
            self._say(f"{self._failed} Training continues.")

    def _stop_if_failed(self) -> None:
        if self._failed is not None and self._section.on_error == "stop":
            raise self._failed

    def _whole(self, step: int, item: str) -> epath.Path:
        """Returns an item's path; raises UserError if the item is missing or damaged."""
        where = self._path / str(step)
        if not self.on_disk.has(step, item):
            raise UserError(
                "checkpoint.no_item", "no such item in the checkpoint", place=where / item
            )
        if problem := self._found.problem(step, item):
            raise UserError("checkpoint.damaged", f"damaged: {problem}", place=where)
        self._found.require_same_copies(step, item)
        return where / item


def _is_imported(items: Mapping[str, Any]) -> bool:
    return PROGRESS not in items or IMPORTED in items[PROGRESS]


def _optimizer_item(state: TrainState) -> dict[str, Any]:
    """Returns the item "optimizer": the state without the parameters and their average."""
    return {"step": state.step, "rng": state.rng, "state": state.opt_state}


def abstract_deltas(deltas: Mapping[str, Any], abstract: Params) -> Params:
    """Returns the abstract parameters at the paths of `deltas`, whose leaves are not read."""
    return {
        name: abstract_deltas(below, abstract[name])
        if isinstance(below, Mapping)
        else abstract[name]
        for name, below in deltas.items()
    }


def with_deltas(params: Params) -> Params:
    """Returns the parameters with their `DELTAS` added, and without this part.

    ``{"word": w, "norm": n, "deltas": {"word": d}} -> {"word": w + d, "norm": n}``

    Every process must call it.
    """
    if DELTAS not in params:
        return params
    deltas = params[DELTAS]
    return _added({part: below for part, below in params.items() if part != DELTAS}, deltas)


def _added(params: Params, deltas: Params) -> Params:
    sums = {
        name: _added(params[name], below) if isinstance(below, dict) else params[name] + below
        for name, below in deltas.items()
    }
    return params | sums
