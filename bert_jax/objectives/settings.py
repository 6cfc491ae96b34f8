"""The settings of a whole pretraining run. Needs no JAX."""

import dataclasses

from bert_jax.data.loader.section import LoaderSection
from bert_jax.model.section import ModelSection
from bert_jax.objectives.registry import Registered
from bert_jax.objectives.train_section import TrainSection
from bert_jax.optim.sections import OptimizerSection
from bert_jax.runs.settings import RunSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainSettings(RunSettings):
    """The settings of a pretraining run."""

    tokenizer: str
    model: ModelSection
    objective: Registered
    optimizer: OptimizerSection
    loader: LoaderSection
    train: TrainSection
    init_from: str | None  # run or model to start from, as given; None: random initialization
    origin: str | None = None  # the run directory that `init_from` names
    pinned_origin: str | None = None  # `init_from` with its revision

    def objective_of(self, phase: int) -> Registered:
        """Returns the objective of a phase. A negative index counts from the last phase."""
        return self.train.phases[phase].objective or self.objective

    def objective_key(self, phase: int) -> str:
        """Returns the key of the section that is a phase's objective."""
        own = self.train.phases[phase].objective is not None
        return f"train.phases.{phase}.objective" if own else "objective"

    @property
    def objectives(self) -> tuple[Registered, ...]:
        """The objectives of all phases."""
        return tuple(map(self.objective_of, range(len(self.train.phases))))
