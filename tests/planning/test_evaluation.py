"""Whether a run's evaluations fit beside its training, in a plan's quick form too."""

import dataclasses
import io
import json
import math
from collections.abc import Sequence
from typing import Any

import jax
import pytest
from rich.console import Console

from bert_jax.config import parse_config
from bert_jax.parallel.accelerators import GIB
from bert_jax.parallel.mesh import make_mesh
from bert_jax.planning import planning
from bert_jax.planning.compilation.lowering import lower_step
from bert_jax.planning.compilation.step import CompiledStep
from bert_jax.planning.compiler import Compiler
from bert_jax.planning.estimate import Plan
from bert_jax.planning.request import CompileRequest
from bert_jax.planning.rows import notes
from bert_jax.section import need
from tests.planning.test_plan import CONFIG, ROWS, VOCABULARY
from tests.planning.test_quick import LAYERS, step

PHASE = "train.phases.0"
ROWS_AT_A_TIME = ROWS // 2


def settings(*overrides: str, layers: int = LAYERS, **changes: Any) -> planning.PlanSettings:
    """Of a deep run in two microbatches."""
    values = json.loads(json.dumps(CONFIG))
    values["model"]["execution"] = {}
    values["model"]["architecture"]["num_hidden_layers"] = layers
    config = parse_config(values, [f"{PHASE}.accumulation=2", *overrides], source="test")
    return planning.PlanSettings(
        vocab_size=VOCABULARY,
        model=need(config.model, "model", "test"),
        objective=config.objective,
        mesh=config.mesh,
        optimizer=config.optimizer,
        train=need(config.train, "train", "test"),
        **changes,
    )


class FakeCompiler:
    """Of evaluations that fit with as many rows as a chip trains on at a time, and no more."""

    def __init__(self, peak: int, copy_bytes: int) -> None:
        self.asked: list[str] = []
        held = step(LAYERS).memory
        assert held is not None
        memory = dataclasses.replace(held, peak=peak)
        self.train = dataclasses.replace(
            step(LAYERS), memory=memory, copy_bytes=copy_bytes, quick=True
        )

    def compile(self, requests: Sequence[CompileRequest], **_: Any) -> list[CompiledStep]:
        return [self.step(each) for each in requests]

    def step(self, request: CompileRequest) -> CompiledStep:
        assert request.quick
        self.asked.append(request.kind)
        phase = request.train.phases[0]
        rows = request.train.evaluation_rows(phase)
        if request.kind == "train" or rows <= phase.microbatch:
            return self.train
        return CompiledStep(
            rows=rows, useful_flops=1.0, compile_seconds=1.0, needed_bytes=20, available_bytes=16
        )


def planned(
    monkeypatch: pytest.MonkeyPatch, *overrides: str, peak: int = 8 * GIB, copy_bytes: int = GIB
) -> tuple[Plan, list[str]]:
    """The plan for a v5e slice of 16 GiB a chip, and the steps that were compiled for it."""
    fake = FakeCompiler(peak, copy_bytes)
    monkeypatch.setattr(planning, "compiled_together", fake.compile)
    monkeypatch.setattr(planning, "kept_step", lambda request, **_: None)
    compiler = Compiler(console=Console(file=io.StringIO()))
    return planning.make_plan(settings(*overrides), "v5e:2x2", compiler=compiler), fake.asked


def test_an_evaluation_of_a_microbatch_is_not_compiled_where_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, asked = planned(monkeypatch)
    assert asked == ["train"]
    assert found.fits
    (phase,) = found.phases
    assert (phase.evaluation_rows, phase.evaluation_batches) == (ROWS_AT_A_TIME, 2)


def test_it_is_compiled_where_the_parameters_as_it_has_them_may_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, asked = planned(monkeypatch, peak=15 * GIB, copy_bytes=GIB + 1)
    assert asked == ["train", "evaluation"]
    assert found.fits


def test_one_of_more_rows_is_compiled_and_that_it_does_not_fit_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, asked = planned(monkeypatch, f"train.evaluation.batch_size={ROWS}")
    assert asked[:2] == ["train", "evaluation"]
    assert not found.fits
    assert found.hours is None
    assert "its evaluation of 80 rows at a time does not" in " ".join(notes(found))
    # What fits has fewer rows: training as it is, and in other ways.
    assert found.suggestions
    overrides = [each.overrides for each in found.suggestions]
    assert ("train.evaluation.batch_size=null",) in overrides
    assert all(each[0] == "train.evaluation.batch_size=null" for each in overrides)


@pytest.mark.parametrize(
    ("override", "rows"),
    [(f"{PHASE}.max_predictions=10", ROWS_AT_A_TIME), ("train.evaluation.batch_size=8", 8)],
)
def test_the_program_has_those_rows_beside_the_state_that_is_trained(
    override: str, rows: int
) -> None:
    request = settings(override, layers=1).request("v5e:2x2")
    mesh = make_mesh(request.mesh, jax.devices("cpu")[:4])
    train = lower_step(request, mesh)
    evaluation = lower_step(request.model_copy(update={"kind": "evaluation"}), mesh)
    assert (train.rows, evaluation.rows) == (ROWS, rows)
    params, batch = evaluation.lowered.args_info[0]
    assert {leaf.shape[0] for leaf in batch.values()} == {rows}
    # Each chip has all parameters, and of the state a quarter and what four do not divide.
    whole = 4 * sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
    assert train.copy_bytes == evaluation.parameter_bytes == whole
    assert evaluation.beside_bytes == train.parameter_bytes + train.optimizer_bytes
    assert 3 / 4 * whole < evaluation.beside_bytes < whole
    assert (train.beside_bytes, evaluation.copy_bytes) == (0, 0)
