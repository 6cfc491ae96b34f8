"""Loads a model for inference from a run directory, a checkpoint directory or a hub."""

from pathlib import Path
from typing import NamedTuple

from etils import epath
from jax.sharding import Mesh

from bert_jax.errors import UserError
from bert_jax.files.atomic import restore_replaced
from bert_jax.files.remote import require_place
from bert_jax.inference.bucketed import InferenceModel, model_of_run
from bert_jax.inference.execution import ForwardDtype
from bert_jax.interop.importing import model_in_memory, read_checkpoint
from bert_jax.interop.sources import fetch, is_checkpoint, is_hub_name
from bert_jax.interop.tf_checkpoint import is_tf
from bert_jax.places import MODELS
from bert_jax.runs.run_directory import Run, open_run
from bert_jax.runs.settings import CONFIG, RUN_OR_CHECKPOINT, missing_run


class OpenModel(NamedTuple):
    """A model on the devices, and the run that it comes from, if there is one."""

    model: InferenceModel
    run: Run | None


def open_model(
    source: epath.PathLike,
    *,
    checkpoint: str,
    ema: bool = False,
    mesh: Mesh,
    dtype: ForwardDtype | None = None,
) -> OpenModel:
    """Loads a model. The arguments and errors are as for `bert_jax.load`.

    `dtype` is the dtype of activations. Default: the run's, or float32 for other checkpoints.
    """
    require_place(source, hub=MODELS)
    restore_replaced(source)
    directory, on_hub = epath.Path(source), is_hub_name(source)
    if not on_hub and (directory / CONFIG).exists():
        run = open_run(directory)
        model = model_of_run(run, checkpoint=checkpoint, ema=ema, mesh=mesh, dtype=dtype)
        return OpenModel(model, run)
    for option, value, default in (("checkpoint", checkpoint, "auto"), ("ema", ema, False)):
        if value != default:
            raise UserError(
                "checkpoint.without_run", f"{source} is no run. Omit this option.", place=option
            )
    path, name = Path(directory), str(source)
    if not on_hub and not is_checkpoint(directory) and not is_tf(directory):
        raise missing_run(directory, allowed=RUN_OR_CHECKPOINT)
    if on_hub:
        path, name, *_ = fetch(source)
    found = read_checkpoint(path)
    return OpenModel(model_in_memory(found, mesh=mesh, name=name, dtype=dtype or "float32"), None)
