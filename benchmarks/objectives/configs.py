"""The configurations of the comparison: text, datasets, and a pretraining run per objective."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.equal_flops import SOURCE, with_flops
from benchmarks.finished_runs import RunFolder
from benchmarks.objectives.settings import Name, StudySection
from bert_jax.config import RunConfig, parse_config

PAIRINGS: Final[dict[Name, str]] = {"mlm+nsp": "nsp", "albert": "sop"}
"""Pairing of an objective's dataset. The others have `full_sentences`."""

_MLM: Final = {"kind": "roberta"}
_OBJECTIVES: Final[dict[Name, dict[str, Any]]] = {
    "mlm+nsp": {"kind": "bert"},
    "mlm": _MLM,
    "electra": {"kind": "electra", "generator": {"size": 0.5}},  # one of two heads
    "albert": {"kind": "sop", "masking": {"unit": "ngram"}},
    "causal+mlm": {"kind": "causal"},
    "distilled": {"kind": "distill"},
}
_ENCODERS: Final[dict[Name, str]] = {"electra": "electra", "albert": "albert"}
# Numbers of steps before they are scaled to a budget. `causal+mlm` has two phases of equal length.
_STEPS: Final = 1000
_WARMUP, _EVALUATION, _CHECKPOINT = 100, 250, 250


def run_name(name: Name, *, seed: int, budget: float) -> str:
    """Returns the name of a pretraining run."""
    return f"{name}-{budget:g}-seed{seed}"


class Configs:
    """Makes the configurations of a comparison in one directory."""

    def __init__(self, study: StudySection, folder: RunFolder, corpus: Sequence[str]) -> None:
        """`corpus`: files or patterns of the text."""
        self._study, self._folder, self._corpus = study, folder, list(corpus)

    @property
    def tokenizer(self) -> Path:
        """Directory of the tokenizer."""
        return self._folder.root / "tokenizer"

    def dataset(self, name: Name | None) -> Path:
        """Returns the directory of an objective's dataset."""
        return self._folder.root / "datasets" / self._pairing(name)

    def _pairing(self, name: Name | None) -> str:
        return "full_sentences" if name is None else PAIRINGS.get(name, "full_sentences")

    def vocab(self) -> RunConfig:
        """Returns the configuration of the tokenizer."""
        section = {
            "input": self._corpus,
            "output": str(self.tokenizer),
            "size": self._study.vocab_size,
            "unused_slots": 0,
        }
        return parse_config({"vocab": section}, source=SOURCE)

    def examples(self, name: Name | None) -> RunConfig:
        """Returns the configuration of an objective's dataset."""
        study, kind = self._study, self._pairing(name)
        section = {
            "input": self._corpus,
            "tokenizer": str(self.tokenizer),
            "output": str(self.dataset(name)),
            "kind": kind,
            "layout": study.layout,
            "max_seq_length": study.seq_length,
            "dupe_factor": 1 if kind == "full_sentences" else study.dupe_factor,
            "validation_fraction": study.validation_fraction,
            "workers": 1,
        }
        return parse_config({"examples": section}, source=SOURCE)

    def pretraining(self, name: Name, run: str, *, seed: int, flops: float) -> RunConfig:
        """Returns the configuration of the run `run` with at most `flops` model FLOPs.

        The teacher of `distilled` must exist. Raises UserError if the FLOPs are too few.
        """
        values = self._values(name, run, seed=seed)
        if name == "distilled":
            teacher = run_name("mlm", seed=seed, budget=max(self._study.budgets))
            values["objective"]["teacher"] = str(self._folder.run_dir(teacher))
        if name == "causal+mlm":
            (phase,) = values["train"]["phases"]
            half = phase | {"steps": _STEPS // 2}
            values["train"]["phases"] = [half, half | {"objective": _MLM}]
        return parse_config(with_flops(values, flops), source=SOURCE)

    def _values(self, name: Name, run: str, *, seed: int) -> dict[str, Any]:
        study = self._study
        return {
            "seed": seed,
            "run_dir": str(self._folder.run_dir(run)),
            "tokenizer": str(self.tokenizer),
            "mesh": {"platform": "cpu"},
            "model": self._model(name),
            "objective": dict(_OBJECTIVES[name]),
            # With the biased moments of 2018, such short runs learn nothing but word frequencies.
            "optimizer": {
                "learning_rate": study.learning_rates.get(name, study.learning_rate),
                "warmup_steps": _WARMUP,
                "beta2": 0.98,
                "bias_correction": True,
            },
            "train": {
                "phases": [
                    {
                        "dataset": str(self.dataset(name)),
                        "steps": _STEPS,
                        "seq_length": study.seq_length,
                        "batch_size": study.batch_size,
                    }
                ],
                "log_every": 50,
                "evaluation": {"every": _EVALUATION, "examples": 512},
                "checkpoint": {"every": _CHECKPOINT},
            },
        }

    def _model(self, name: Name) -> dict[str, Any]:
        study, kind = self._study, _ENCODERS.get(name, "bert")
        architecture: dict[str, Any] = {
            "num_hidden_layers": study.student_layers if name == "distilled" else study.layers,
            "hidden_size": study.hidden_size,
            "num_attention_heads": study.heads,
            "intermediate_size": 4 * study.hidden_size,
            "max_position_embeddings": study.seq_length,
            "initializer_range": study.initializer_range,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        }
        if kind in ("electra", "albert"):
            architecture["embedding_size"] = study.embedding_size
        return {"kind": kind, "architecture": architecture, "execution": {"dtype": "float32"}}
