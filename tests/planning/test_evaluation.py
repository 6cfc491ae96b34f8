"""Plans check that evaluations fit into memory, in the quick form too."""

import math

import jax
import pytest
from rich.console import Console

from bert_jax.narration import Narrator
from bert_jax.parallel.accelerators import GIB
from bert_jax.parallel.mesh import make_mesh
from bert_jax.planning.compilation.lowering import lower_step
from bert_jax.planning.compiler import Compiler
from bert_jax.planning.estimate import Plan
from bert_jax.planning.planning import make_plan
from bert_jax.verbs.plan import train_step
from tests.planning.plans import ROWS, VOCABULARY, FakeCompiler, compiled, run

PHASE = "train.phases.0"
ROWS_AT_A_TIME = ROWS // 2
HALVES = f"{PHASE}.accumulation=2"


def planned(
    monkeypatch: pytest.MonkeyPatch, *overrides: str, peak: int = 8 * GIB, copy_bytes: int = GIB
) -> tuple[Plan, list[str]]:
    """Returns a plan for a v5e slice with 16 GiB per chip, and the steps compiled for it."""
    fake = FakeCompiler(compiled(peak=peak, copy_bytes=copy_bytes)).install(monkeypatch)
    request = train_step(run(HALVES, *overrides), "v5e:2x2", vocab_size=VOCABULARY)
    found = make_plan(request, compiler=Compiler(narrator=Narrator(Console(quiet=True))))
    return found, fake.asked


def test_a_small_evaluation_with_room_is_not_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, asked = planned(monkeypatch)
    assert asked == ["train"]
    assert found.fits
    (phase,) = found.phases
    assert (phase.evaluation_rows, phase.evaluation_batches) == (ROWS_AT_A_TIME, 10 * 2)
    sets = "train.evaluation={every: 100, examples: 64, sets: {a: nowhere/a, b: nowhere/b, c: c}}"
    found, _ = planned(monkeypatch, sets)
    assert found.phases[0].evaluation_batches == 3 * 10 * 2
    found, _ = planned(monkeypatch, "train.ema.decay=0.99")  # its scores take as long
    assert found.phases[0].evaluation_batches == 2 * 10 * 2


def test_each_stage_of_a_batch_ramp_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ramp = f"{PHASE}.batch_ramp=[{{steps: 300, batch_size: 16}}, {{steps: 50, batch_size: 40}}]"
    found, asked = planned(monkeypatch, ramp)
    assert [(each.steps, each.batch_size) for each in found.phases] == [
        (300, 16),
        (50, 40),
        (650, ROWS),
    ]
    assert [each.evaluation_batches for each in found.phases] == [0, 0, 10 * 2]
    assert asked == ["train"] * 3


def test_evaluation_is_compiled_if_parameters_may_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, asked = planned(monkeypatch, peak=15 * GIB, copy_bytes=GIB + 1)
    assert asked == ["train", "evaluation"]
    assert found.fits


def test_a_larger_evaluation_that_does_not_fit_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, asked = planned(monkeypatch, f"train.evaluation.batch_size={ROWS}")
    assert asked[:2] == ["train", "evaluation"]
    assert not found.fits
    assert found.hours is None
    assert found.memory_missing().startswith("the evaluation step of phase 0 needs 19.3 GiB")
    # All suggestions reduce the rows of an evaluation batch. One changes nothing else.
    assert found.suggestions
    overrides = [each.overrides for each in found.suggestions]
    assert ("train.evaluation.batch_size=null",) in overrides
    assert all(each[0] == "train.evaluation.batch_size=null" for each in overrides)


@pytest.mark.parametrize(
    ("override", "rows"),
    [(f"{PHASE}.max_predictions=10", ROWS_AT_A_TIME), ("train.evaluation.batch_size=8", 8)],
)
def test_the_evaluation_program_counts_the_training_state(override: str, rows: int) -> None:
    config = run(HALVES, override, layers=1)
    request = train_step(config, "v5e:2x2", vocab_size=VOCABULARY)
    mesh = make_mesh(request.mesh, jax.devices("cpu")[:4])
    train = lower_step(request, mesh)
    stage = lower_step(request.model_copy(update={"batch_size": 16}), mesh)
    assert (stage.rows, stage.flops / train.flops) == (16, 16 / ROWS)
    evaluation = lower_step(request.model_copy(update={"kind": "evaluation"}), mesh)
    assert (train.rows, evaluation.rows) == (ROWS, rows)
    params, batch, *_ = evaluation.lowered.args_info[0]
    assert {leaf.shape[0] for leaf in batch.values()} == {rows}
    # Each chip has all parameters, a quarter of each divisible array, and the other arrays.
    whole = 4 * sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
    assert train.copy_bytes == evaluation.parameter_bytes == whole
    assert evaluation.beside_bytes == train.parameter_bytes + train.optimizer_bytes
    assert 3 / 4 * whole < evaluation.beside_bytes < whole
    assert (train.beside_bytes, evaluation.copy_bytes) == (0, 0)


def test_a_plan_counts_a_moving_average() -> None:
    found = []
    for overrides in ((), ("train.ema.decay=0.99",)):
        request = train_step(run(*overrides, layers=1), "v5e:2x2", vocab_size=VOCABULARY)
        lowered = lower_step(request, make_mesh(request.mesh, jax.devices("cpu")[:4]))
        found.append((lowered, request.key()))
    (plain, plain_key), (averaged, key) = found
    assert averaged.optimizer_bytes == plain.optimizer_bytes + plain.parameter_bytes
    assert key != plain_key  # of the cache
