"""Saving and restoring a run. The only file that imports Orbax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint.checkpoint_managers import preservation_policy

from bert_jax.errors import UserError
from bert_jax.files.remote import is_remote
from bert_jax.task import Params
from bert_jax.train.sections import CheckpointSection
from bert_jax.train.state import TrainState

PARAMS: Final = "params"
OPTIMIZER: Final = "optimizer"
PROGRESS: Final = "progress"
SELECTION_SCORE: Final = "rank"  # its name on disk
# Devices that hold the same array each save a part of it. Cutting a part out is a program that has
# to be compiled for the array's shape: below this size one device saves it whole.
MIN_SLICE_BYTES: Final = 64 * 2**10


class Checkpointer:
    """The checkpoints of one run directory: ``checkpoints/<step>/{params,optimizer,progress}``.

    Parameters and optimizer are separate items of plain nested dicts, so that evaluation, export
    and fine-tuning read the parameters alone. Saving is asynchronous; leaving the context waits.
    """

    def __init__(
        self,
        directory: epath.PathLike,
        section: CheckpointSection,
        *,
        read_only: bool = False,
        ranked: bool = True,
        save_bytes: int | None = None,
    ) -> None:
        """Opens the directory, and makes it unless it is to be read only.

        Args:
            directory: local or gs://.
            section: how many of the last and of the best to keep.
            read_only: whether the directory is left alone; it need not exist then.
            ranked: whether checkpoints are evaluated, so that the best can be kept.
            save_bytes: how much may be on its way to the disk at a time, at least the largest
                array; None for Orbax's own limit.
        """
        keep: list[Any] = [preservation_policy.LatestN(section.keep_last)]
        ranking: dict[str, Any] = {}
        if ranked:
            ranking = {"best_fn": lambda scores: scores[SELECTION_SCORE], "best_mode": "min"}
        if ranked and section.keep_best:
            keep.append(
                preservation_policy.BestN(
                    get_metric_fn=lambda scores: scores[SELECTION_SCORE],
                    reverse=True,
                    n=section.keep_best,
                    keep_checkpoints_without_metrics=False,
                )
            )
        # Orbax refuses a relative path, and only once it writes.
        path = epath.Path(directory)
        self._directory = path if is_remote(path) else path.resolve()
        self._manager = ocp.CheckpointManager(
            self._directory,
            handler_registry=_handlers(save_bytes),
            options=ocp.CheckpointManagerOptions(
                preservation_policy=preservation_policy.AnyPreservationPolicy(keep),
                create=not read_only,
                **ranking,
            ),
        )

    def latest_step(self) -> int | None:
        """Returns the step of the newest whole checkpoint."""
        return self._manager.latest_step()

    def all_steps(self) -> list[int]:
        """Returns the steps of all whole checkpoints, oldest first."""
        return sorted(self._manager.all_steps())

    def best_step(self) -> int | None:
        """Returns the step of the checkpoint with the best selection score; None without one."""
        return self._manager.best_step()

    def save(
        self,
        state: TrainState,
        *,
        step: int,
        progress: Mapping[str, Any],
        selection_score: float | None = None,
    ) -> None:
        """Starts saving the state as `step`; the next save or leaving the context waits for it.

        Raises:
            RuntimeError: Orbax declined to save, which it otherwise does without a word.
        """
        if step == self.latest_step():
            return
        saved = self._manager.save(
            step,
            args=ocp.args.Composite(
                **{
                    PARAMS: ocp.args.PyTreeSave(state.params),
                    OPTIMIZER: ocp.args.PyTreeSave(_optimizer_tree(state)),
                    PROGRESS: ocp.args.JsonSave(dict(progress)),
                }
            ),
            metrics=_scored(selection_score),
        )
        if not saved:
            raise RuntimeError(
                f"checkpoint {step} was not saved: {self._directory} already holds step "
                f"{self.latest_step()}"
            )

    def save_params(
        self, params: Params, *, step: int, selection_score: float | None = None
    ) -> None:
        """Saves parameters alone: all there is of an imported model, or of a sweep's best."""
        self._manager.save(
            step,
            args=ocp.args.Composite(**{PARAMS: ocp.args.PyTreeSave(params)}),
            metrics=_scored(selection_score),
        )

    def restore_optimizer(self, abstract: TrainState, *, step: int) -> TrainState:
        """Reads everything but the parameters, which stay as `abstract` has them.

        Raises:
            UserError: a tensor is missing, unexpected, or of another shape or dtype.
        """
        wanted = _optimizer_tree(abstract)
        self._compare(wanted, step=step, item=OPTIMIZER)
        args = ocp.args.Composite(**{OPTIMIZER: _restore_args(wanted)})
        optimizer = self._manager.restore(step, args=args)[OPTIMIZER]
        return abstract._replace(
            step=optimizer["step"],
            rng=optimizer["rng"],
            opt_state=_from_nested(optimizer["state"], abstract.opt_state),
            healthy=jax.device_put(jnp.ones((), jnp.bool_), abstract.healthy.sharding),
        )

    def has_optimizer(self, step: int) -> bool:
        """Says whether a checkpoint is more than parameters."""
        return (self._directory / str(step) / OPTIMIZER).exists()

    def progress(self, step: int) -> Mapping[str, Any]:
        """Returns a checkpoint's progress as plain JSON, ``{}`` if it is parameters alone."""
        if not (self._directory / str(step) / PROGRESS).exists():
            return {}
        args = ocp.args.Composite(**{PROGRESS: ocp.args.JsonRestore()})
        return self._manager.restore(step, args=args)[PROGRESS]

    def restore_params(self, abstract_params: Params, *, step: int) -> Params:
        """Reads the parameters alone.

        Raises:
            UserError: a tensor is missing, unexpected, or of another shape or dtype.
        """
        self._compare(abstract_params, step=step, item=PARAMS)
        args = ocp.args.Composite(**{PARAMS: _restore_args(abstract_params)})
        return self._manager.restore(step, args=args)[PARAMS]

    def reached_preemption(self, step: int) -> bool:
        """Says whether a process of this job got notice to stop; all get the same answer."""
        return self._manager.reached_preemption(step)

    def wait(self) -> None:
        """Waits until everything saved is whole on disk."""
        self._manager.wait_until_finished()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, *raised: object) -> None:
        self._manager.close()

    def _compare(self, wanted: Any, *, step: int, item: str) -> None:
        """Orbax casts dtypes silently and reports shapes late: compare before reading."""
        where = f"{self._directory}/{step}/{item}"
        try:
            found_tree = self._manager.item_metadata(step)[item]
        except (KeyError, FileNotFoundError) as error:
            raise UserError(f"{where}: no such item in the checkpoint") from error
        if found_tree is None:
            raise UserError(f"{where}: no such item in the checkpoint")
        found = _by_name(found_tree)
        expected = _by_name(wanted)
        for name in sorted(expected.keys() | found.keys()):
            if name not in found:
                raise UserError(f"{where}: tensor {name} is missing; the model here needs it")
            if name not in expected:
                raise UserError(f"{where}: tensor {name} is not part of the model here")
            have, want = found[name], expected[name]
            if tuple(have.shape) != tuple(want.shape) or have.dtype != want.dtype:
                raise UserError(
                    f"{where}: tensor {name} found {have.dtype}{list(have.shape)}, the model here "
                    f"needs {want.dtype}{list(want.shape)}"
                )


def _scored(selection_score: float | None) -> dict[str, float] | None:
    return None if selection_score is None else {SELECTION_SCORE: selection_score}


def _handlers(save_bytes: int | None) -> ocp.handlers.CheckpointHandlerRegistry:
    """Says how each item is stored, so that its metadata can be read before anything was saved."""
    registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
    # Orbax counts in 10⁹ bytes, and takes fractions.
    limit: dict[str, Any] = {} if save_bytes is None else {"save_concurrent_gb": save_bytes / 1e9}
    arrays = ocp.type_handlers.create_type_handler_registry(
        (
            jax.Array,
            ocp.type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=MIN_SLICE_BYTES),
        ),
        (np.ndarray, ocp.type_handlers.NumpyHandler()),
    )
    for item in (PARAMS, OPTIMIZER):
        handler = ocp.PyTreeCheckpointHandler(type_handler_registry=arrays, **limit)
        registry.add(item, ocp.args.PyTreeSave, handler)
        registry.add(item, ocp.args.PyTreeRestore, handler)
    progress = ocp.JsonCheckpointHandler()
    registry.add(PROGRESS, ocp.args.JsonSave, progress)
    registry.add(PROGRESS, ocp.args.JsonRestore, progress)
    return registry


def _restore_args(wanted: Any) -> ocp.args.PyTreeRestore:
    """Asks for arrays with the shapes, dtypes and shardings of `wanted`."""
    return ocp.args.PyTreeRestore(
        wanted, restore_args=ocp.checkpoint_utils.construct_restore_args(wanted)
    )


def _optimizer_tree(state: TrainState) -> dict[str, Any]:
    return {"step": state.step, "rng": state.rng, "state": _to_nested(state.opt_state)}


def _parts(path: tuple[Any, ...]) -> list[str]:
    return [jax.tree_util.keystr((entry,), simple=True) for entry in path]


def _by_name(tree: Any) -> dict[str, Any]:
    """Names every leaf by its path: ``{"layers/output/kernel": leaf}``."""
    leaves = jax.tree_util.tree_leaves_with_path(
        tree, is_leaf=lambda node: hasattr(node, "shape") and hasattr(node, "dtype")
    )
    return {"/".join(_parts(path)): leaf for path, leaf in leaves}


def _to_nested(tree: Any) -> dict[str, Any]:
    """Turns optax's tuples into nested dicts keyed by position and field name."""
    nested: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        *parents, last = _parts(path)
        node = nested
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = leaf
    return nested


def _from_nested(nested: dict[str, Any], like: Any) -> Any:
    def pick(path: tuple[Any, ...], _: Any) -> Any:
        node: Any = nested
        for part in _parts(path):
            node = node[part]
        return node

    return jax.tree_util.tree_map_with_path(pick, like)
