"""The settings of pretraining: phases that may have an objective of their own.

Needs no JAX.
"""

import dataclasses
from typing import Final, Literal, Self

import pydantic

from bert_jax.data.loader.section import LoaderSection
from bert_jax.errors import SettingError
from bert_jax.model.section import ModelSection
from bert_jax.objectives.registry import AnyObjectiveSection, Registered
from bert_jax.optim.sections import OptimizerSection
from bert_jax.runs.settings import RunSettings
from bert_jax.section import Section
from bert_jax.train import sections


class MlperfSection(Section):
    """Facts of a result that a run cannot know. The log also has the run's own settings.

    Source of the rules: mlcommons/training_policies, `training_rules.adoc`.
    """

    organization: str = pydantic.Field(min_length=1)
    """Who runs the benchmark."""
    platform: str = pydantic.Field(min_length=1)
    """Name of the system, such as `tpu-v5e-16`."""
    division: Literal["closed", "open"] = "closed"
    """Division of the rules: `closed` has the model and the data of the reference."""
    status: Literal["cloud", "onprem", "research"] = "cloud"
    """Availability of the system."""
    caches_cleared: bool = False
    """Whether the file caches of all hosts were empty when the run started."""


LESS_MEMORY: Final = (
    "Use fewer rows per device and microbatch (a smaller train.phases.N.batch_size or a larger "
    "train.phases.N.accumulation), model.execution.remat=full, more devices with mesh.fsdp, or "
    "fewer loader.workers."
)
"""Advice after an error of a full memory."""


class PhaseSection(sections.PhaseSection):
    """A phase of pretraining, see `bert_jax.train.sections.PhaseSection`."""

    objective: AnyObjectiveSection | None = None
    """The objective of this phase, such as `{kind: roberta}` after a phase of kind `causal`. All
    phases must train the same heads. `distill` and `electra` must be the run's objective. null:
    the run's objective."""

    @pydantic.model_validator(mode="after")
    def _one_model(self) -> Self:
        if self.objective is not None and self.objective.has_second_model:
            raise SettingError(
                "phases.second_model",
                f"found {self.objective.kind}, allowed: in the section objective",
                place="objective.kind",
            )
        return self


class TrainSection(sections.TrainSection):
    """The run: phases, evaluation, checkpoints, reports."""

    phases: tuple[PhaseSection, ...] = pydantic.Field(  # pyright: ignore[reportIncompatibleVariableOverride] (settings are frozen)
        min_length=1
    )
    """Consecutive phases, each with its own dataset, row length and batch size."""
    report_texts: int = pydantic.Field(default=4, ge=0, le=100)
    """Number of texts of each held-out set that `report.html` shows with filled masks. 0: none."""
    mlperf: MlperfSection | None = None
    """Writes the log of MLPerf Training's BERT benchmark, `mlperf.log`. null: no log."""


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
