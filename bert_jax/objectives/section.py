"""The settings of the objective and of a whole pretraining run; they import no JAX."""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any, Literal

from bert_jax.data.loader.section import LoaderSection
from bert_jax.data.rows.masking import MaskingSection
from bert_jax.model.config import ModelSection
from bert_jax.optim.sections import OptimizerSection
from bert_jax.parallel.section import MeshSection
from bert_jax.section import Section
from bert_jax.train.sections import TrainSection

ObjectiveName = Literal["bert", "sop", "roberta"]


class ObjectiveSection(Section):
    """Which loss, and how it masks; the two combine freely.

    ``objective: {name: sop, masking: {unit: ngram}}`` is ALBERT's.

    Attributes:
        name: ``bert``: masked language model and next sentence prediction. ``sop``: masked language
            model and sentence order prediction. ``roberta``: masked language model alone.
        masking: of training rows.
    """

    name: ObjectiveName = "bert"
    masking: MaskingSection = MaskingSection()


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainSettings:
    """What `pretrain` was asked for, complete but for what only the data can tell."""

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
