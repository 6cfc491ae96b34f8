"""The settings of one pretraining run, complete but for what only the data can tell."""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from bert_jax.data.loader.section import LoaderSection
from bert_jax.model.config import ModelSection
from bert_jax.objectives.section import ObjectiveSection
from bert_jax.optim.sections import OptimizerSection
from bert_jax.parallel.section import MeshSection
from bert_jax.train.sections import TrainSection


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainSettings:
    """What `pretrain` was asked for."""

    seed: int
    run_dir: str
    tokenizer: str
    model: ModelSection
    objective: ObjectiveSection
    mesh: MeshSection
    optimizer: OptimizerSection
    loader: LoaderSection
    train: TrainSection
    init_from: str | None  # a run directory; None for random parameters
    config: Mapping[str, Any]  # the whole configuration as plain values, for config.yaml
    allow_data_change: bool = False  # of what an interrupted run has read
    started: float = dataclasses.field(default_factory=time.time)  # seconds since 1970
