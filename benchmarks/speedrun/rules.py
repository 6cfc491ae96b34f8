"""The rules of a speedrun. A result that breaks one is not recorded."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from benchmarks.finished_runs import RunRecord
from benchmarks.significance import Spread, welch
from benchmarks.speedrun.tier import TierSection
from bert_jax.errors import UserError

LEVEL: Final = 0.05  # level of significance


class Verdict(NamedTuple):
    """Whether the new recipe reaches the reference's loss."""

    target: Spread  # MLM loss of the reference
    loss: Spread  # MLM loss of the new recipe
    share: float  # FLOPs of the new recipe, as a share of the reference's
    p: float  # of Welch's test: is the new loss below the reference's?

    @property
    def reached(self) -> bool:
        """Whether the new recipe's loss is significantly below the reference's."""
        return self.loss.mean <= self.target.mean and self.p < LEVEL


class TaskVerdict(NamedTuple):
    """Whether fine-tuning from the new recipe is worse."""

    reference: Spread
    recipe: Spread
    p: float  # of Welch's test: is the new score below the reference's?

    @property
    def worse(self) -> bool:
        """Whether the new score is significantly below the reference's."""
        return self.recipe.mean < self.reference.mean and self.p < LEVEL


def check_runs(
    tier: TierSection, reference: Sequence[RunRecord], recipe: Sequence[RunRecord]
) -> Verdict:
    """Returns the verdict. Raises UserError if runs break a rule."""
    for records in (reference, recipe):
        if (seeds := tuple(record.seed for record in records)) != tier.seeds:
            raise _broken("seed", found=seeds, allowed=tier.seeds, place=records[0].name)
    first = reference[0]
    for record in (*reference, *recipe):
        for what in ("tokenizer", "held_out"):
            found, allowed = getattr(record, what), getattr(first, what)
            if found != allowed:
                raise _broken(what, found=found, allowed=allowed, place=record.name)
        if not record.curve or record.curve[-1].step != record.steps:
            last = record.curve[-1].step if record.curve else 0
            raise _broken(
                "last evaluated step", found=last, allowed=record.steps, place=record.name
            )
    share = max(record.flops for record in recipe) / min(record.flops for record in reference)
    if share > tier.budget:
        raise _broken(
            "share of FLOPs", found=f"{share:.4f}", allowed=tier.budget, place=recipe[0].name
        )
    ours, theirs = ([record.loss for record in records] for records in (recipe, reference))
    return Verdict(Spread.of(theirs), Spread.of(ours), share, welch(ours, theirs, "less"))


def check_task(scores: Mapping[str, Sequence[float]], reference: str, recipe: str) -> TaskVerdict:
    """Returns the verdict on a task from its scores by recipe."""
    ours, theirs = scores[recipe], scores[reference]
    return TaskVerdict(Spread.of(theirs), Spread.of(ours), welch(ours, theirs, "less"))


def _broken(what: str, *, found: object, allowed: object, place: str) -> UserError:
    return UserError("speedrun.rule", f"{what}: found {found}, allowed: {allowed}", place=place)
