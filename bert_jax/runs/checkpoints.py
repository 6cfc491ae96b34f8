"""The checkpoints of a run directory: the one place that chooses what stores them."""

from typing import Final, NamedTuple

from etils import epath
from jax.sharding import Mesh

from bert_jax.errors import UserError, did_you_mean
from bert_jax.narration import doing
from bert_jax.optim.optimizer import MomentsState, find_moments, make_optimizer
from bert_jax.optim.sections import OptimizerSection
from bert_jax.parallel.mesh import open_mesh
from bert_jax.runs.directory import CHECKPOINTS, Run
from bert_jax.task import Params
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.checkpoint_local import LocalCheckpoints, TieredCheckpoints
from bert_jax.train.progress_display import warn_aloud
from bert_jax.train.sections import CheckpointSection
from bert_jax.train.state import ModelDefinition, abstract_params, abstract_state, define_model

DEFAULTS: Final = CheckpointSection()


def open_checkpoints(run_dir: epath.PathLike) -> Checkpointer:
    """Opens a run's checkpoints to read them; nothing in the directory is changed."""
    return Checkpointer(epath.Path(run_dir) / CHECKPOINTS, DEFAULTS, read_only=True, say=warn_aloud)


def write_checkpoints(
    run_dir: epath.PathLike,
    section: CheckpointSection = DEFAULTS,
    *,
    save_bytes: int | None = None,
    mesh: Mesh | None = None,
) -> Checkpointer:
    """Opens a run's checkpoints to add to them. The caller must be the run's only writer.

    Sections and bytes are as `Checkpointer` takes them. Without the mesh that the state lies on
    nothing is saved on the hosts' own disks. Raises UserError if the run's directory or the local
    one cannot be written.
    """
    path = epath.Path(run_dir) / CHECKPOINTS
    if section.local is not None and mesh is not None:
        local = LocalCheckpoints(section.local, epath.Path(run_dir), mesh, say=warn_aloud)
        return TieredCheckpoints(path, section, local, save_bytes=save_bytes, say=warn_aloud)
    return Checkpointer(path, section, save_bytes=save_bytes, say=warn_aloud)


class LoadedParams(NamedTuple):
    """Parameters of one checkpoint on a mesh."""

    step: int
    model: ModelDefinition
    params: Params
    mesh: Mesh


def load_params(run: Run, *, checkpoint: str, mesh: Mesh | None = None) -> LoadedParams:
    """Reads the parameters of one of a run's checkpoints onto this machine's devices.

    `checkpoint` is `last`, `best`, a step, or `auto`: the best of a fine-tuned run, else the last.
    Without a mesh they go to all devices there are. Raises UserError if there is no such
    checkpoint.
    """
    mesh = mesh or open_mesh()
    with (
        doing(f"reading the parameters of {run.directory}"),
        open_checkpoints(run.directory) as checkpoints,
    ):
        model = define_model(run.build)
        if checkpoint == "auto":
            ranked = run.is_fine_tuned and checkpoints.best_step() is not None
            checkpoint = "best" if ranked else "last"
        step = find_step(checkpoints, checkpoint, where=str(run.directory))
        params = checkpoints.restore_params(abstract_params(model, mesh), step=step)
    return LoadedParams(step, model, params, mesh)


def load_moments(run: Run, loaded: LoadedParams) -> MomentsState | None:
    """Reads the moments that belong to parameters; None unless the optimizer was AdamW."""
    section = run.section("optimizer", OptimizerSection, verb="export")
    with open_checkpoints(run.directory) as checkpoints:
        if section.name != "adamw" or not checkpoints.has_optimizer(loaded.step):
            return None
        optimizer = make_optimizer(section, loaded.model.axes)
        abstract = abstract_state(loaded.model, optimizer, loaded.mesh)
        restored = checkpoints.restore_optimizer(abstract, step=loaded.step)
    return find_moments(restored.opt_state)


def find_step(checkpoints: Checkpointer, asked: str, *, where: str) -> int:
    """Returns the step that `last`, `best` or a number asks for; raises UserError without one."""
    newest = checkpoints.latest_params()
    if newest is None:
        raise UserError(f"{where}: no checkpoint in it yet")
    if asked == "last":
        return newest
    if asked == "best":
        best = checkpoints.best_step()
        if best is None:
            raise UserError(f"{where}: no checkpoint was evaluated, so none is the best")
        return best
    steps = checkpoints.all_steps()
    if asked.isdigit() and int(asked) in steps:
        return int(asked)
    allowed = ["last", "best", *map(str, steps)]
    near = did_you_mean(asked, allowed)
    raise UserError(f'--checkpoint: found "{asked}", allowed: {", ".join(allowed)}{near}')
