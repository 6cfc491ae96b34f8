"""The train section of pretraining: phases that may have an objective of their own.

Needs no JAX.
"""

from typing import Final, Self

import pydantic

from bert_jax.errors import SettingError
from bert_jax.objectives.mlperf_section import MlperfSection
from bert_jax.objectives.registry import AnyObjectiveSection
from bert_jax.train import sections

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
                f"found {self.objective.kind}, allowed only in the section objective",
                place="objective.kind",
            )
        return self


class TrainSection(sections.TrainSection):
    """The run: phases, evaluation, checkpoints, reports."""

    phases: tuple[PhaseSection, ...] = pydantic.Field(  # pyright: ignore[reportIncompatibleVariableOverride] (settings are frozen)
        min_length=1
    )
    """Consecutive phases, each with its own dataset, row length and batch size."""
    mlperf: MlperfSection | None = None
    """Writes the log of MLPerf Training's BERT benchmark, `mlperf.log`. null: no log."""
