"""Saving and restoring a run: when a save counts, what a failed one does, which stay."""

import concurrent.futures
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Self

from etils import epath

from bert_jax.errors import RunStopped, UserError
from bert_jax.files.patience import OUTAGE
from bert_jax.files.remote import is_remote
from bert_jax.task import Params
from bert_jax.train import checkpoint_trees as trees
from bert_jax.train.checkpoint_directory import CheckpointDirectory
from bert_jax.train.checkpoint_orbax import OrbaxFiles, SaveFailed
from bert_jax.train.manifest import OPTIMIZER, PARAMS, PROGRESS, SelectionScore
from bert_jax.train.sections import CheckpointSection
from bert_jax.train.state import TrainState


class Checkpointer:
    """The checkpoints of one run directory: ``checkpoints/<step>/{params,optimizer,progress}``.

    Parameters and optimizer are separate items of plain nested dicts, so that evaluation, export
    and fine-tuning read the parameters alone. Saving is asynchronous; leaving the context waits.
    Arrays are read into the layout of the abstract ones, whose mesh need not be that of saving.
    Nothing is restored before its files were compared, once, with the checkpoint's manifest. A file
    that differs is a UserError; so is a tensor that is missing, unexpected, not finite, or of
    another shape or dtype.
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

        It is local or gs://; one that is read only is left alone, and need not exist. `save_bytes`,
        at least the largest array, may be on their way to the disk at a time; None for Orbax's own
        limit. `say` gets a line about a checkpoint that is not whole, or was not saved. Raises
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
        self._files = OrbaxFiles(save_bytes=save_bytes)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving: concurrent.futures.Future[None] | None = None
        self._failed: RunStopped | None = None  # of the last save, if it did

    def latest_step(self) -> int | None:
        """Returns the step of the newest whole checkpoint; one that is not is passed over, aloud.

        Raises UserError: there are checkpoints, and none is whole.
        """
        return self._settled().newest(None)

    def latest_params(self) -> int | None:
        """Returns the step of the newest checkpoint whose parameters are whole, as above."""
        return self._settled().newest((PARAMS,))

    def best_step(self) -> int | None:
        """Returns the step with the best selection score and whole parameters; None without one.

        Scores of another phase or of other validation data than the newest are not compared.
        """
        return self._settled().best((PARAMS,))

    def all_steps(self) -> list[int]:
        """Returns the steps of all finished checkpoints, oldest first; files are not compared."""
        return self._settled().steps()

    def outdated(self) -> bool:
        """Says whether another process has deleted a checkpoint since this one looked."""
        return self._settled().outdated()

    def problem(self, step: int) -> str | None:
        """Returns what is wrong with a checkpoint; None if every file is what was saved."""
        return self._settled().problem(step)

    def save(
        self,
        state: TrainState,
        *,
        step: int,
        progress: Mapping[str, Any],
        selection_score: SelectionScore | None = None,
    ) -> bool:
        """Starts saving the state as `step`; the next save or leaving the context waits for it.

        The run is healthy. `progress` is plain JSON: data position, phase, metrics not yet
        reported; the score is of an evaluation at this step. Returns whether it began, or was there
        already. Raises RunStopped: this or the save before failed, and `on_error` is `stop`.
        """
        parts = {
            PARAMS: state.params,
            OPTIMIZER: trees.optimizer_tree(state),
            PROGRESS: dict(progress),
        }
        return self._save(step, parts, selection_score)

    def not_saved(self, step: int, reason: str) -> None:
        """Answers to what keeps a step from being saved before its save begins, as to a failed one.

        Each process must call it. Raises RunStopped: `on_error` is `stop`.
        """
        if step not in self._settled().steps():
            self._fail(step, SaveFailed(reason))
            self._stop_if_failed()

    def add_score(self, step: int, score: SelectionScore) -> None:
        """Says of a whole checkpoint how an evaluation that came later ranks it."""
        self._settled().add_score(step, score)

    def save_params(
        self, params: Params, *, step: int, selection_score: SelectionScore | None = None
    ) -> None:
        """Saves parameters alone: all there is of an imported model, or of a sweep's best."""
        self._save(step, {PARAMS: params}, selection_score)

    def restore_optimizer(self, abstract: TrainState, *, step: int) -> TrainState:
        """Reads everything but the parameters, which stay as `abstract` has them."""
        saved = self._restore(trees.optimizer_tree(abstract), step=step, item=OPTIMIZER)
        return trees.with_optimizer(abstract, saved)

    def has_optimizer(self, step: int) -> bool:
        """Says whether a checkpoint is more than parameters."""
        return self._settled().has(step, OPTIMIZER)

    def progress(self, step: int) -> Mapping[str, Any]:
        """Returns a checkpoint's progress as plain JSON, ``{}`` if it is parameters alone."""
        if not self._settled().has(step, PROGRESS):
            return {}
        self._found.require(step, (PROGRESS,))
        return self._files.read_json(self._path / str(step) / PROGRESS)

    def restore_params(self, abstract_params: Params, *, step: int) -> Params:
        """Reads the parameters alone."""
        return self._restore(abstract_params, step=step, item=PARAMS)

    def settle(self) -> None:
        """Waits for the save under way; RunStopped: the last failed, and `on_error` is `stop`."""
        self._settled()
        self._stop_if_failed()

    def wait(self) -> None:
        """Waits until all saves are whole; RunStopped: the last failed, with any `on_error`."""
        self._settled()
        if self._failed is not None:
            raise self._failed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            if raised[0] is None:
                self.wait()
            else:
                with contextlib.suppress(RunStopped):  # the error that is under way counts
                    self._settled()
        finally:
            # tensorstore may try to save for as long as it likes, and cannot be stopped.
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
            self._files.start(self._path / str(step), items, step=step, score=selection_score)
        except SaveFailed as error:
            self._fail(step, error)
            self._stop_if_failed()
            return False
        self._saving = self._thread.submit(self._finish, step, list(items), selection_score)
        return True

    def _finish(self, step: int, parts: list[str], score: SelectionScore | None) -> None:
        """Waits until a checkpoint is whole, and only then deletes those not to be kept."""
        try:
            self._files.finish()
        except SaveFailed as error:
            self._fail(step, error)
            return
        self._failed = None
        self._found.add(step, parts, score)
        self._found.retire(self._section)

    def _settled(self) -> CheckpointDirectory:
        """Returns the directory after the save under way, if there is one.

        Two threads may wait for the same save: the train loop's, and that which a signal came to.
        Raises RunStopped: the bucket is given up.
        """
        if self._saving is not None:
            if is_remote(self._path):
                OUTAGE.result(self._saving)
            self._saving.result()
        return self._found

    def _fail(self, step: int, error: SaveFailed) -> None:
        """Says that a save has failed, and clears up after it."""
        self._found.sweep(failed=step)
        steps = self._found.steps()
        last = f"the last one is {steps[-1]}" if steps else "there is none before it"
        text = f"{self._path}: checkpoint {step} was NOT SAVED ({error}); {last}"
        self._failed = RunStopped(text)
        self._failed.__cause__ = error
        if self._section.on_error == "warn":
            self._say(f"{text}; training goes on")

    def _stop_if_failed(self) -> None:
        if self._failed is not None and self._section.on_error == "stop":
            raise self._failed

    def _restore(self, wanted: Any, *, step: int, item: str) -> Any:
        self._settled()
        where = self._path / str(step) / item
        if not self._found.has(step, item):
            raise UserError(f"{where}: no such item in the checkpoint")
        self._found.require(step, (item,))
        found = self._files.tensors(where)
        trees.check_tensors(found, wanted, where=where)
        restored = self._files.read_arrays(where, wanted)
        trees.refuse_non_finite(restored, where=str(where))
        return restored
