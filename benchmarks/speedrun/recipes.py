"""Turns a recipe into the configurations of its runs: paths, seed, learning rate, FLOPs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bert_jax
from benchmarks.equal_flops import total_flops, with_flops
from benchmarks.finished_runs import hash_of
from benchmarks.speedrun.tier import TierSection
from bert_jax.config import RunConfig, parse_config
from bert_jax.data.dataset.provenance import PROVENANCE_NAME
from bert_jax.pipelines.examples import ExamplesSection
from bert_jax.section import need

SOURCE = "speedrun"
MASK_SEED = 0  # of the held-out rows, for every run


class Recipes:
    """Makes the tokenizer, the datasets and the configurations of a tier below one directory."""

    def __init__(self, tier: TierSection, corpus: Path, root: Path) -> None:
        """`corpus` is the folder of the text, `root` the directory of all output."""
        self._tier, self._root = tier, root
        self._text = [str(corpus / "*")]
        self._tokenizer = str(root / "tokenizer")
        self._reference: float | None = None

    def make_tokenizer(self) -> None:
        """Trains the tokenizer of the reference, unless it exists: all recipes share it."""
        if (self._root / "tokenizer").exists():
            return
        config = self._tier.reference.load()
        section = need(config.vocab, "vocab", "speedrun").model_dump(mode="json")
        values = {"vocab": section | {"input": self._text, "output": self._tokenizer}}
        bert_jax.vocab(parse_config(values, source=SOURCE))

    def config(
        self,
        config: RunConfig,
        *,
        name: str,
        seed: int,
        rate: float = 1.0,
        share: float | None = None,
    ) -> RunConfig:
        """Returns the configuration of a run, and makes its datasets.

        Args:
            config: the recipe.
            name: name of the run.
            seed: seed of the run.
            rate: factor of the learning rates.
            share: FLOPs as a share of the reference's. If it is None, keeps the recipe's own steps.
        """
        values = config.model_dump(mode="json") | {"vocab": None, "examples": None, "seed": seed}
        values |= {"tokenizer": self._tokenizer, "run_dir": str(self._root / "runs" / name)}
        values["optimizer"] = with_rate(values["optimizer"], rate)
        train = values["train"]
        examples = need(config.examples, "examples", "speedrun")
        for phase in train["phases"]:
            length = f"max_seq_length={phase['seq_length']}"
            phase |= with_rate(phase, rate)
            phase["dataset"] = self._dataset(examples, [length])
        held_out = self._dataset(examples, self._tier.held_out)
        evaluation = {"every": 1, "dataset": held_out, "seed": MASK_SEED, "examples": None}
        train["evaluation"] = (train["evaluation"] or {}) | evaluation
        if share is not None:
            values = with_flops(values, share * self.reference_flops())
        made = parse_config(values, source=SOURCE)
        steps = need(made.train, "train", "speedrun").total_steps
        values["train"]["evaluation"]["every"] = -(-steps // self._tier.evaluations)
        return parse_config(values, source=SOURCE)

    def reference_flops(self) -> float:
        """Returns the FLOPs of a run of the reference."""
        if self._reference is None:
            reference = self.config(self._tier.reference.load(), name="reference", seed=0)
            self._reference = total_flops(reference)
        return self._reference

    def _dataset(self, section: ExamplesSection, overrides: Sequence[str]) -> str:
        """Returns the path of a dataset, which is made unless it exists.

        `overrides` are settings of the section. The tier's own settings have priority, so that the
        held-out documents of all datasets are equal.
        """
        values = section.model_dump(mode="json") | {"input": self._text}
        values |= {"tokenizer": self._tokenizer, "output": "?"}
        named = [f"examples.{each}" for each in (*overrides, *self._tier.text)]
        made = parse_config({"examples": values}, named, source=SOURCE)
        section = need(made.examples, "examples", "speedrun")
        kind, length = section.pairing.kind, section.pairing.max_seq_length
        key = hash_of(section.model_dump(mode="json", exclude={"workers", "engine"}))[:8]
        output = self._root / "datasets" / f"{kind}-{length}-{key}"
        if not (output / PROVENANCE_NAME).exists():
            named.append(f"examples.output={output}")
            bert_jax.examples(parse_config({"examples": values}, named, source=SOURCE))
        return str(output)


def with_rate(section: dict[str, Any], factor: float) -> dict[str, Any]:
    """Returns a section whose learning rate is multiplied by `factor`, if it has one."""
    rate = section.get("learning_rate")
    return section if rate is None else section | {"learning_rate": rate * factor}
