"""The settings of the objective and of a whole pretraining run. Needs no JAX."""

import dataclasses
from typing import Literal

from bert_jax.data.loader.section import LoaderSection
from bert_jax.data.rows.masking import MaskingSection
from bert_jax.model.section import ModelSection
from bert_jax.optim.sections import OptimizerSection
from bert_jax.runs.settings import RunSettings
from bert_jax.section import Section
from bert_jax.train.sections import TrainSection

ObjectiveName = Literal["bert", "sop", "roberta"]


class ObjectiveSection(Section):
    """The loss and the masking. Any loss works with any masking.

    ``objective: {name: sop, masking: {unit: ngram}}`` is the objective of ALBERT.

    Attributes:
        name: ``bert``: masked language model and next sentence prediction. ``sop``: masked language
            model and sentence order prediction. ``roberta``: masked language model alone.
        masking: masking of training rows.
    """

    name: ObjectiveName = "bert"
    masking: MaskingSection = MaskingSection()


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainSettings(RunSettings):
    """The settings of a pretraining run."""

    tokenizer: str
    model: ModelSection
    objective: ObjectiveSection
    optimizer: OptimizerSection
    loader: LoaderSection
    train: TrainSection
    init_from: str | None  # run or model to load; None: random initialization
