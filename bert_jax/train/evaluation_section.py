"""The settings of evaluations during training."""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

import pydantic

from bert_jax.errors import SettingError
from bert_jax.section import PathText, Section, refuse_ignored

# Scores of averaged parameters have names with "ema.".
_SET_NAME: Final = re.compile("(?!ema$)[a-z0-9_-]+")


def score_name(held_out: str, score: str) -> str:
    """Returns the name of a set's score: ``domain.mlm_loss``. `dataset` has the name ""."""
    return f"{held_out}.{score}" if held_out else score


def held_out_key(name: str) -> str:
    """Returns the key of a held-out dataset: ``train.evaluation.sets.domain``. See `score_name`."""
    return f"train.evaluation.{f'sets.{name}' if name else 'dataset'}"


def _check_names(found: Any) -> Any:
    for name in found if isinstance(found, Mapping) else ():
        if not _SET_NAME.fullmatch(name):
            raise SettingError.wrong(
                "evaluation.set_name", f'"{name}"', "a-z, 0-9, _ and -, not ema", place=name
            )
    return found


def _check_losses(found: dict[str, float]) -> dict[str, float]:
    for name in found:
        if not name.endswith("loss"):
            raise SettingError.wrong(
                "evaluation.not_a_loss", name, "losses, such as mlm_loss", place=name
            )
    return found


HeldOutSets: TypeAlias = Annotated[dict[str, PathText], pydantic.BeforeValidator(_check_names)]
"""Directories of datasets by name."""
LossLimits: TypeAlias = Annotated[
    dict[str, Annotated[float, pydantic.Field(ge=0)]], pydantic.AfterValidator(_check_losses)
]
"""Limits of losses by name."""
LossWeights: TypeAlias = Annotated[
    dict[str, Annotated[float, pydantic.Field(gt=0)]],
    pydantic.Field(min_length=1),
    pydantic.BeforeValidator(lambda found: {found: 1.0} if isinstance(found, str) else found),
    pydantic.AfterValidator(_check_losses),
]
"""Weights of losses by name. A text is one loss."""


class StopAtSection(Section):
    """Score of an evaluation that ends the run, with a last checkpoint.

    Set either `at_least` or `at_most`.
    """

    metric: str
    """Name of the score, such as `mlm_accuracy`, `loss` or `domain.mlm_loss`."""
    at_least: float | None = None
    """Lowest score that ends the run."""
    at_most: float | None = None
    """Highest score that ends the run."""

    @pydantic.model_validator(mode="after")
    def _one_limit(self) -> "StopAtSection":
        if (self.at_least is None) == (self.at_most is None):
            found = "none" if self.at_least is None else "both"
            raise SettingError.wrong(
                "evaluation.stop_at", found, "at_least or at_most", place="at_least"
            )
        name = "at_most" if self.at_least is None else "at_least"
        limit = getattr(self, name)
        if self.metric.endswith("accuracy") and not 0 <= limit <= 1:
            raise SettingError.wrong(
                "evaluation.stop_at_fraction", limit, "0 to 1, such as 0.75", place=name
            )
        return self

    def is_met(self, scores: Mapping[str, float]) -> bool:
        """Returns whether the scores of an evaluation end the run."""
        if (score := scores.get(self.metric)) is None:
            return False
        if self.at_least is not None:
            return score >= self.at_least
        return self.at_most is not None and score <= self.at_most


class EvaluationSection(Section):
    """Evaluation on the validation split during training."""

    every: int = pydantic.Field(default=1000, ge=1)
    """Steps between evaluations."""
    dataset: PathText | None = None
    """Dataset whose split `validation` is evaluated, so that runs with other training data can be
    compared. Its examples must fit the rows of every phase. An objective with a pair task also
    accepts examples without pairs, and then has no scores of that task. null: the phase's
    dataset. `dataset` or `sets` is required if a phase mixes datasets."""
    sets: HeldOutSets = pydantic.Field(default_factory=dict)
    """Several such datasets by name, instead of `dataset`: `{domain: data/clinical, general:
    data/wiki}`. Every score is reported for each set, as `domain.mlm_loss`."""
    seed: int | None = pydantic.Field(default=0, ge=0)
    """Seed of the masks. By default, all runs have equal masks, so that their scores can be
    compared. null: the run's seed."""
    batch_size: int | None = pydantic.Field(default=None, ge=1)
    """Rows per batch; scores do not depend on it. null: the phase's `batch_size` divided by its
    `accumulation`."""
    examples: int | None = pydantic.Field(default=None, ge=1)
    """Number of examples from the validation split of each dataset. null: all."""
    at_start: bool = False
    """Whether to evaluate also before the first step of a new run. Always so with `at_most`."""
    best_by: LossWeights | None = None
    """Loss that selects the best checkpoint and counts for `patience`, such as `domain.mlm_loss`,
    or a weighted sum: `{domain.mlm_loss: 0.7, general.mlm_loss: 0.3}`. null: `loss`; with `sets`,
    the mean of `loss` over the sets."""
    patience: int | None = pydantic.Field(default=None, ge=1)
    """Number of consecutive evaluations without a better `best_by` that ends the run, with a last
    checkpoint. null: the run ends after its last step."""
    at_most: LossLimits = pydantic.Field(default_factory=dict)
    """Largest allowed rise of losses since the evaluation before the first step, such as
    `{general.mlm_loss: 0.05}`. If phases mix or change their datasets, it needs `dataset` or
    `sets`."""
    on_exceeded: Literal["warn", "stop"] = "warn"
    """Response to a rise above `at_most`: warn at every evaluation, or end the run with a last
    checkpoint and exit code 0."""
    stop_at: StopAtSection | None = None
    """Score that ends the run early. The evaluation before the first step does not count. null: the
    run ends after its last step."""

    @pydantic.model_validator(mode="after")
    def _fits(self) -> "EvaluationSection":
        if self.dataset is not None and self.sets:
            raise SettingError(
                "evaluation.dataset_and_sets", "found with dataset. Remove one.", place="sets"
            )
        if not self.at_most:
            refuse_ignored(self, "on_exceeded", allowed="at_most")
        return self

    @property
    def held_out(self) -> dict[str, str]:
        """Paths of the held-out datasets by the name of the set; `dataset` has the name ""."""
        return self.sets if self.dataset is None else {"": self.dataset}

    @property
    def by_key(self) -> dict[str, str]:
        """Paths of the held-out datasets by key."""
        return {held_out_key(name): path for name, path in self.held_out.items()}

    @property
    def rules(self) -> dict[str, Iterable[str]]:
        """Names of the scores in rules, by the key of the rule in this section."""
        found = {
            "best_by": self.best_by,
            "at_most": self.at_most or None,
            "patience": None if self.patience is None else (),
            "stop_at.metric": None if self.stop_at is None else (self.stop_at.metric,),
        }
        return {key: names for key, names in found.items() if names is not None}
