"""The stages of a speedrun: tuning, runs that count, ablation, fine-tuning."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.fine_tuned import TaskSection, fine_tuned
from benchmarks.finished_runs import RunFolder, RunRecord
from benchmarks.speedrun.recipes import Recipes
from benchmarks.speedrun.tier import TierSection
from bert_jax.config import RunConfig

REFERENCE: Final = "reference"
STAGES: Final = ("tune", "runs", "ablation", "finetune")


class Trial(NamedTuple):
    """A run to do."""

    name: str
    config: RunConfig


class Tuned(NamedTuple):
    """The result of tuning a recipe's learning rate."""

    rate: float  # best factor of the recipe's learning rate
    trials: Mapping[float, RunRecord]  # by factor

    @property
    def at_edge(self) -> bool:
        """Whether the best factor is the smallest or the largest of several."""
        return len(self.trials) > 1 and self.rate in (min(self.trials), max(self.trials))


class Speedrun:
    """Runs the stages of a tier in one directory. Finished runs are kept."""

    def __init__(
        self,
        tier: TierSection,
        recipes: Recipes,
        folder: RunFolder,
        *,
        name: str,
        recipe: RunConfig,
    ) -> None:
        """`name` and `recipe` are the new recipe."""
        self._tier, self._recipes, self._folder = tier, recipes, folder
        self._sources = {REFERENCE: tier.reference.load(), name: recipe}
        self._shares = {REFERENCE: 1.0, name: tier.budget}
        self._rates: dict[str, float] = {}
        self.name = name

    def tune(self, *, only_configs: bool = False) -> dict[str, Tuned]:
        """Tries the same factors of the learning rate for both recipes; returns the best."""
        trials = {
            name: {
                rate: self._trial(name, f"tune-{name}-{rate:g}", self._tier.tuning_seed, rate=rate)
                for rate in self._tier.learning_rates
            }
            for name in self._sources
        }
        if len(self._tier.learning_rates) == 1:  # nothing to compare
            (rate,) = self._tier.learning_rates
            self._rates = dict.fromkeys(self._sources, rate)
            return {name: Tuned(rate, {}) for name in self._sources}
        if only_configs:
            self._print([each for of in trials.values() for each in of.values()])
        tuned: dict[str, Tuned] = {}
        for name, of_recipe in trials.items():
            found = {rate: self._run(trial) for rate, trial in of_recipe.items()}
            best = min(found, key=lambda rate: found[rate].loss)
            self._rates[name] = best
            tuned[name] = Tuned(best, found)
        return tuned

    def runs(self, *, only_configs: bool = False) -> dict[str, list[RunRecord]]:
        """Does the runs that count: all seeds of both recipes, by recipe."""
        trials = {
            name: [self._trial(name, f"{name}-seed{seed}", seed) for seed in self._tier.seeds]
            for name in self._sources
        }
        if only_configs:
            self._print([each for of in trials.values() for each in of])
        return {name: list(map(self._run, of)) for name, of in trials.items()}

    def ablation(self, *, only_configs: bool = False) -> dict[str, list[RunRecord]]:
        """Adds each switch alone to the reference, and all together, with the reference's FLOPs."""
        trials = {
            switch: [
                self._trial(REFERENCE, f"switch-{_slug(switch)}-seed{seed}", seed, more=overrides)
                for seed in self._tier.seeds
            ]
            for switch, overrides in self._tier.ablation.items()
        }
        trials["all together"] = [
            self._trial(self.name, f"{self.name}-full-seed{seed}", seed, share=1.0)
            for seed in self._tier.seeds
        ]
        if only_configs:
            self._print([each for of in trials.values() for each in of])
        return {switch: list(map(self._run, of)) for switch, of in trials.items()}

    def finetune(self, data: Path) -> dict[str, dict[str, list[float]]]:
        """Fine-tunes the runs that count; returns a score per seed, by task and recipe."""
        return {
            task: {
                name: [
                    self._score(task, section, data, f"{name}-seed{seed}", seed)
                    for seed in self._tier.seeds
                ]
                for name in self._sources
            }
            for task, section in self._tier.finetune.items()
        }

    def _trial(
        self,
        source: str,
        name: str,
        seed: int,
        *,
        rate: float | None = None,
        share: float | None = None,
        more: Sequence[str] = (),
    ) -> Trial:
        config = self._recipes.config(
            self._tier.reference.load(*more) if more else self._sources[source],
            name=name,
            seed=seed,
            rate=self._rates.get(source, 1.0) if rate is None else rate,
            share=self._shares[source] if share is None else share,
        )
        return Trial(name, config)

    def _run(self, trial: Trial) -> RunRecord:
        return self._folder.pretrained(*trial)

    def _score(self, task: str, section: TaskSection, data: Path, origin: str, seed: int) -> float:
        """Returns the score of a run that is fine-tuned on a task."""
        name = f"{task}-{origin}"
        found = fine_tuned(self._folder, name, section, origin=origin, data=data, seed=seed)
        return found.scores[section.metric]

    def _print(self, trials: Sequence[Trial]) -> None:
        """Writes the configurations of unfinished runs, prints their commands, and exits."""
        missing = [trial for trial in trials if not self._folder.finished(trial.name)]
        for name, config in missing:
            self._folder.write_config(name, config)
            print(f"bert-jax pretrain {self._folder.config_file(name)}")
        if missing:
            sys.exit(0)


def _slug(text: str) -> str:
    """Returns a name for files: ``masking 0.3 → 0.15`` → ``masking-0.3-0.15``."""
    parts = "".join(c if c.isalnum() or c == "." else " " for c in text).split()
    return "-".join(parts)


def all_records(found: Mapping[str, Sequence[RunRecord]]) -> Iterator[RunRecord]:
    """Yields the records of all recipes."""
    for records in found.values():
        yield from records
