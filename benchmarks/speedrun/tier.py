"""The settings of a tier: corpus, recipes, budget, seeds and fine-tuning."""

from pathlib import Path
from typing import Any, Final

import pydantic

from benchmarks.fine_tuned import TaskSection
from bert_jax.config import RunConfig, load_config
from bert_jax.errors import SettingError, UserError, commas, did_you_mean
from bert_jax.files.yaml_file import read_yaml
from bert_jax.section import Section
from bert_jax.validation import validate

TIERS: Final = Path(__file__).with_name("tiers")
MIN_SEEDS: Final = 3


class CorpusSection(Section):
    """The text of a tier."""

    sha256: str | None = None
    """SHA-256 of what ``sha256sum *`` prints in the corpus' folder. null: any corpus. Then only
    rows of the table with equal hashes can be compared."""
    origin: str
    """Where the text is from."""


class RecipeSection(Section):
    """A pretraining recipe: a configuration with changes."""

    config: str
    """A file, or the name of a packaged configuration."""
    overrides: tuple[str, ...] = ()
    """``key=value`` settings."""

    def load(self, *more: str) -> RunConfig:
        """Returns the configuration. Raises UserError if it is invalid."""
        return load_config(self.config, (*self.overrides, *more))


class TierSection(Section):
    """A tier: the rules of its runs."""

    title: str
    """Hardware and time."""
    devices: int = pydantic.Field(ge=1)
    """Number of devices of a run, for device-hours."""
    corpus: CorpusSection
    """The text."""
    text: tuple[str, ...] = ()
    """``key=value`` settings of the section ``examples`` in all recipes, such as the layout of the
    text and the share of held-out documents."""
    held_out: tuple[str, ...]
    """``key=value`` settings of the section ``examples`` of the held-out dataset."""
    evaluations: int = pydantic.Field(default=10, ge=1)
    """Number of evaluations during a run."""
    reference: RecipeSection
    """The 2018 recipe."""
    recipe: RecipeSection
    """The new recipe."""
    budget: float = pydantic.Field(gt=0, le=1)
    """FLOPs of the new recipe, as a share of the reference's."""
    learning_rates: tuple[float, ...] = pydantic.Field(min_length=1)
    """Trials of the tuning, as multiples of each recipe's learning rate."""
    tuning_seed: int = pydantic.Field(default=0, ge=0)
    """Seed of the trials."""
    seeds: tuple[int, ...] = pydantic.Field(min_length=MIN_SEEDS)
    """Seeds of the runs that count."""
    ablation: dict[str, tuple[str, ...]] = pydantic.Field(default_factory=dict)
    """Switches by name: ``key=value`` settings, each added alone to the reference."""
    finetune: dict[str, TaskSection] = pydantic.Field(default_factory=dict)
    """Tasks by name."""

    @pydantic.model_validator(mode="after")
    def _separate_seeds(self) -> "TierSection":
        if self.tuning_seed in self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise SettingError(
                "speedrun.seeds",
                f"found {commas(self.seeds)}, allowed: seeds that differ from each other and from "
                f"{self.tuning_seed}, the seed of the tuning",
                place="seeds",
            )
        return self


def load_tier(name: str) -> TierSection:
    """Returns a tier by its name, or from a YAML file. Raises UserError if there is none."""
    path = Path(name) if name.endswith(".yaml") else TIERS / f"{name}.yaml"
    if not path.exists():
        names = sorted(file.stem for file in TIERS.glob("*.yaml"))
        raise UserError(
            "speedrun.tier",
            f"found {name}, allowed: {commas(names)}, or a YAML file{did_you_mean(name, names)}",
            place="tier",
        )
    values: Any = read_yaml(path)
    return validate(TierSection, values, source=str(path))
