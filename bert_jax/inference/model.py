"""A model's parameters on devices, with all that texts need to go through it."""

from typing import NamedTuple

from jax.sharding import Mesh

from bert_jax.model.config import Architecture, HeadsSection
from bert_jax.runs.checkpoints import LoadedParams, load_params
from bert_jax.runs.directory import Run
from bert_jax.text import Tokenizer


class InferenceModel(NamedTuple):
    """What answers: a checkpoint of a run, or one of another program."""

    name: str  # its directory, for messages
    tokenizer: Tokenizer
    architecture: Architecture
    heads: HeadsSection
    loaded: LoadedParams


def model_of_run(run: Run, *, checkpoint: str, mesh: Mesh | None = None) -> InferenceModel:
    """Reads one of a run's checkpoints, see `load_params`."""
    loaded = load_params(run, checkpoint=checkpoint, mesh=mesh)
    return InferenceModel(str(run.directory), run.tokenizer, run.architecture, run.heads, loaded)
