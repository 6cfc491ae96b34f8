"""Small runs to plan, and made-up results of the compiler."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest

from bert_jax.config import RunConfig, parse_config
from bert_jax.parallel.accelerators import GIB
from bert_jax.planning.compilation.cycles import Cycles
from bert_jax.planning.compilation.step import CompiledStep, Memory
from bert_jax.planning.compiler import Compiler
from bert_jax.planning.request import CompileRequest

HIDDEN, INTERMEDIATE, LAYERS, LENGTH, ROWS, VOCABULARY = 64, 128, 2, 64, 80, 1000
PREDICTIONS = 10  # 15% of 64 tokens, plus one
DEEP = 12  # layers of a run that is compiled quickly
CONFIG: dict[str, Any] = {
    "run_dir": "nowhere",
    "tokenizer": "nowhere",
    "model": {
        "architecture": {
            "hidden_size": HIDDEN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 2,
            "intermediate_size": INTERMEDIATE,
            "max_position_embeddings": LENGTH,
        },
        "execution": {"attention": "fused"},
    },
    "train": {
        "phases": [
            {
                "dataset": {"nowhere/a": 0.8, "nowhere/b": 0.2},
                "steps": 1000,
                "seq_length": LENGTH,
                "batch_size": ROWS,
                "max_predictions": PREDICTIONS,
            }
        ],
        "evaluation": {"every": 100, "examples": 64, "dataset": "nowhere/c"},
    },
}


def values(*, layers: int = DEEP) -> dict[str, Any]:
    """Returns the settings of a run with `layers` layers."""
    found = json.loads(json.dumps(CONFIG))
    found["model"]["execution"] = {}
    found["model"]["architecture"]["num_hidden_layers"] = layers
    return found


def run(*overrides: str, layers: int = DEEP) -> RunConfig:
    """Returns a run with `layers` layers."""
    return parse_config(values(layers=layers), overrides, source="test")


def compiled(*, peak: int = 8 * GIB, **facts: Any) -> CompiledStep:
    """Returns a step of 8 GiB that takes 3 million cycles."""
    facts = {"rows": ROWS, "useful_flops": 1e9, "compile_seconds": 10.0, "quick": True} | facts
    return CompiledStep(
        memory=Memory(parameters=GIB, optimizer=2 * GIB, batch=7, temporaries=5 * GIB, peak=peak),
        cycles=Cycles(
            by_bytes=400_000,
            by_kind={"matrix products": 2_000_000, "copies": 400_000, "custom kernels": 600_000},
            kernels=(),
            uncounted={},
            unknown_loops=(),
            product_flops=500,
            kernel_flops=3,
            hbm_bytes=900,
        ),
        **facts,
    )


def refused_step(needed: int, available: int) -> CompiledStep:
    """Returns a step that does not fit."""
    return CompiledStep(
        rows=ROWS,
        useful_flops=1.0,
        compile_seconds=1.0,
        needed_bytes=needed,
        available_bytes=available,
    )


@dataclasses.dataclass
class FakeCompiler:
    """Refuses microbatches of more than `most` rows, and evaluations larger than a microbatch."""

    train: CompiledStep = dataclasses.field(default_factory=compiled)
    most: int = ROWS
    asked: list[str] = dataclasses.field(default_factory=list)

    def install(self, patch: pytest.MonkeyPatch) -> "FakeCompiler":
        """Replaces the compiler and its cache."""
        patch.setattr(Compiler, "steps", lambda _, requests, **__: self.steps(requests))
        return self

    def steps(self, requests: Sequence[CompileRequest]) -> list[CompiledStep]:
        """Returns one step per request."""
        return [self._step(each) for each in requests]

    def _step(self, request: CompileRequest) -> CompiledStep:
        assert request.quick
        self.asked.append(request.kind)
        phase = request.train.phases[request.phase]
        too_many = request.train.evaluation_rows(phase) > phase.microbatch
        if phase.microbatch > self.most or (request.kind == "evaluation" and too_many):
            return refused_step(round(19.3 * GIB), 16 * GIB)
        return self.train
