"""The settings of a whole pretraining run. Needs no JAX."""

import dataclasses

from bert_jax.data.loader.section import LoaderSection
from bert_jax.model.section import ModelSection
from bert_jax.objectives.registry import Registered
from bert_jax.optim.sections import OptimizerSection
from bert_jax.runs.settings import RunSettings
from bert_jax.train.sections import TrainSection


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainSettings(RunSettings):
    """The settings of a pretraining run."""

    tokenizer: str
    model: ModelSection
    objective: Registered
    optimizer: OptimizerSection
    loader: LoaderSection
    train: TrainSection
    init_from: str | None  # run or model to load; None: random initialization
