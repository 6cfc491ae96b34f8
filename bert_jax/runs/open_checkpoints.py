"""Opens the checkpoints of a run directory, and loads their parameters."""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import jax
from etils import epath
from jax.sharding import Mesh

from bert_jax.errors import UserError
from bert_jax.files.read import is_whole
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import HeadsSection
from bert_jax.narration import doing
from bert_jax.optim.optimizer import MomentsState, find_moments, make_optimizer
from bert_jax.optim.sections import OptimizerSection
from bert_jax.parallel.mesh import open_mesh
from bert_jax.parallel.same_settings import require_same
from bert_jax.runs.run_directory import CHECKPOINTS, Run
from bert_jax.task import Params
from bert_jax.train.checkpoint_manifest import EMA, OPTIMIZER, PARAMS
from bert_jax.train.checkpointer import Checkpointer
from bert_jax.train.progress_display import warn_aloud
from bert_jax.train.sections import CheckpointSection
from bert_jax.train.state import ModelDefinition, abstract_params, abstract_state, define_model

DEFAULTS: Final = CheckpointSection()
_READS: Final = 5  # maximum attempts while the run deletes checkpoints
Found = TypeVar("Found")


def open_checkpoints(run_dir: epath.PathLike) -> Checkpointer:
    """Opens a run's checkpoints for reading."""
    return Checkpointer(epath.Path(run_dir) / CHECKPOINTS, DEFAULTS, read_only=True, say=warn_aloud)


def read_checkpoints(run_dir: epath.PathLike, read: Callable[[Checkpointer], Found]) -> Found:
    """Returns the result of `read` on a run's checkpoints.

    If the run deletes a checkpoint while `read` reads it, `read` is called again; a job of several
    processes does not retry. Raises UserError if all attempts fail for this reason.
    """
    for _ in range(_READS):
        with open_checkpoints(run_dir) as checkpoints:
            try:
                return read(checkpoints)
            except Exception:  # Orbax and TensorStore have no specific error for missing files
                if jax.process_count() > 1 or not checkpoints.on_disk.outdated():
                    raise
    deleted = f"deleted during {_READS} reads. Set a larger train.checkpoint.keep_last."
    raise UserError("checkpoint.deleted", deleted, place=epath.Path(run_dir) / CHECKPOINTS)


def write_checkpoints(
    run_dir: epath.PathLike,
    section: CheckpointSection = DEFAULTS,
    *,
    save_bytes: int | None = None,
) -> Checkpointer:
    """Opens a run's checkpoints for writing. At most one job may write to a run."""
    path = epath.Path(run_dir) / CHECKPOINTS
    return Checkpointer(path, section, save_bytes=save_bytes, say=warn_aloud)


class LoadedParams(NamedTuple):
    """Parameters of one checkpoint on a mesh."""

    step: int
    architecture: EncoderArchitecture  # of the phase that wrote the checkpoint
    heads: HeadsSection  # of that phase
    model: ModelDefinition
    params: Params
    mesh: Mesh
    phase: int = -1  # number of that phase; −1 if it is unknown


def own_model(run: Run) -> ModelDefinition:
    """Returns the definition of a run's own model, without the generator of its objective."""
    return define_model(run.build)


def load_params(
    run: Run,
    *,
    checkpoint: str,
    ema: bool = False,
    mesh: Mesh | None = None,
    define: Callable[[Run], ModelDefinition] = own_model,
) -> LoadedParams:
    """Loads the parameters of one of a run's checkpoints.

    Args:
        run: run directory.
        checkpoint: `last`, `best`, a step, or `auto`. `auto` is the best checkpoint of a fine-tuned
            run, and the last checkpoint of other runs.
        ema: whether to load the moving average of the parameters instead.
        mesh: mesh for the parameters. If None, uses a mesh of all devices.
        define: returns the model of a run with the architecture of the checkpoint.

    Raises:
        UserError: there is no such checkpoint, or it has no moving average.
    """
    mesh = mesh or open_mesh()

    def read(checkpoints: Checkpointer) -> LoadedParams:
        step, wrote, phase = find_checkpoint(run, checkpoints, checkpoint)
        if ema and not checkpoints.on_disk.has(step, EMA):
            raise no_ema(run)
        model, item = define(wrote), EMA if ema else PARAMS
        params = checkpoints.restore_params(abstract_params(model, mesh), step=step, item=item)
        return LoadedParams(step, wrote.architecture, wrote.heads, model, params, mesh, phase)

    with doing(f"reading the parameters of {run.directory}"):
        return read_checkpoints(run.directory, read)


def no_ema(run: Run) -> UserError:
    """Returns the error if a run's checkpoint has no moving average of the parameters."""
    return UserError(
        "checkpoint.no_ema",
        f"{run.directory} has no moving average. Pretrain with train.ema, or omit this.",
        place="--ema",
    )


def run_of_checkpoint(run: Run, *, checkpoint: str) -> Run:
    """Returns the run with the model of a checkpoint's phase.

    The arguments are as for `load_params`. Raises UserError if there is no such checkpoint.
    """
    return read_checkpoints(
        run.directory, lambda found: find_checkpoint(run, found, checkpoint).run
    )


class FoundCheckpoint(NamedTuple):
    """A checkpoint of a run."""

    step: int
    run: Run  # with the model of the phase that wrote the checkpoint
    phase: int  # number of that phase; −1 if it is unknown


def find_checkpoint(run: Run, checkpoints: Checkpointer, asked: str) -> FoundCheckpoint:
    """Finds a run's checkpoint. `asked` is as for `load_params`.

    Raises UserError if there is no such checkpoint, or other processes find another run.
    """
    require_same_run(run)
    if asked == "auto":
        ranked = run.is_fine_tuned and checkpoints.on_disk.best() is not None
        asked = "best" if ranked else "last"
    step = find_step(checkpoints, asked, where=str(run.directory))
    progress = checkpoints.progress(step)
    # config.yaml describes the last phase of a pretraining run. Earlier phases may differ.
    pretrained = "phase" in progress and not run.is_fine_tuned
    causal = progress.get("causal", False) if pretrained else run.heads.causal
    architecture = run.architecture.with_changes(progress.get("architecture", {}))
    run = run.of_phase(architecture, causal=causal)
    return FoundCheckpoint(step, run, progress.get("phase", -1))


def require_same_run(run: Run) -> None:
    """Raises UserError in all processes if their hosts have different runs at the same path.

    Compares the model and the tokenizer. The files of a checkpoint are compared before a restore.
    """
    found = {"tokenizer": run.tokenizer.hash, "model": run.model.model_dump(mode="json")}
    require_same({run.directory.name: found})


def load_moments(run: Run, loaded: LoadedParams) -> MomentsState | None:
    """Returns AdamW's moments for loaded parameters, or None if the checkpoint has none.

    Also returns None for a fine-tuned run, whose optimizer has other state, and if the optimizer
    trained more than the run's own model, see `TRAINING_PARTS`.
    """
    if run.is_fine_tuned:
        return None
    section = run.section("optimizer", OptimizerSection, verb="export")

    def read(checkpoints: Checkpointer) -> MomentsState | None:
        if loaded.step not in checkpoints.on_disk.steps():
            deleted = f"checkpoint {loaded.step} was just deleted. Run this again."
            raise UserError("checkpoint.moments_deleted", deleted, place=run.directory)
        if section.name != "adamw" or not checkpoints.on_disk.has(loaded.step, OPTIMIZER):
            return None
        if checkpoints.training_parts(loaded.step):
            return None
        optimizer = make_optimizer(section, loaded.model.axes)
        abstract = abstract_state(loaded.model, optimizer, loaded.mesh)
        return find_moments(checkpoints.restore_optimizer(abstract, step=loaded.step).opt_state)

    return read_checkpoints(run.directory, read)


def find_step(checkpoints: Checkpointer, asked: str, *, where: str) -> int:
    """Returns the step of the checkpoint that `asked` names: `last`, `best` or a step.

    Raises UserError if there is no such checkpoint.
    """
    newest = checkpoints.on_disk.newest(PARAMS)
    if newest is None:
        raise UserError("checkpoint.none", "no checkpoint yet", place=where)
    if asked == "last":
        return newest
    if asked == "best":
        best = checkpoints.on_disk.best()
        if best is None:
            raise UserError("checkpoint.none_evaluated", "no checkpoint was evaluated", place=where)
        return best
    steps = checkpoints.on_disk.steps()
    asked = str(asked)  # callers in Python may pass a number
    if is_whole(asked) and int(asked) in steps:
        return int(asked)
    allowed = ["last", "best", *map(str, steps)]
    raise UserError.unknown("checkpoint.unknown", asked, allowed, place="--checkpoint")
