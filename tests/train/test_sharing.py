"""Equal steps share one program across runs, seeds and notebook cells."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from bert_jax.data.rows.masking import MaskingSection
from bert_jax.encoders.bert.model import Bert
from bert_jax.model.section import HeadsSection
from bert_jax.optim.finetuning import make_finetune_optimizer
from bert_jax.optim.optimizer import make_optimizer
from bert_jax.optim.sections import FinetuneOptimizerSection, OptimizerSection
from bert_jax.parallel.compiling import FUNCTIONS_KEPT, made_once
from bert_jax.tasks.task import FinetuneTask
from bert_jax.train.state import define_model
from bert_jax.train.step import StepSpec, make_evaluation_step, make_train_step
from tests.project import ok, one_phase, write_config
from tests.support import small_task
from tests.traces import traces


def test_a_second_run_traces_no_step(project: Path, tmp_path: Path) -> None:
    values = one_phase(project, evaluation={"every": 12, "examples": 24})
    config = write_config(tmp_path / "run.yaml", values)
    ok("pretrain", config, f"run_dir={tmp_path / 'first'}")
    with traces() as found:
        other = (
            "seed=4",
            "optimizer.learning_rate=3e-4",
            "objective.masking.replace_with_random=0.05",
        )
        ok("pretrain", config, f"run_dir={tmp_path / 'second'}", *other)
        jax.jit(lambda: jnp.ones(()))()
    assert found[-1] == "<lambda>"
    # Neither the train step, the evaluation step nor the initialisation was compiled again.
    assert not {"step", "draw"} & set(found)


def spec(
    *, optimizer: dict[str, Any] | None = None, task: dict[str, Any] | None = None, **changes: Any
) -> StepSpec:
    made = dataclasses.replace(small_task(**changes), **(task or {}))
    model = define_model(made.build)
    section = OptimizerSection.model_validate(optimizer or {})
    return StepSpec(task=made, model=model, optimizer=make_optimizer(section, model.axes))


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_dropout_prob": 0.0},
        {"dtype": "bfloat16"},
        {"execution": {"remat": "full"}},
        {"optimizer": {"eps": 1e-8}},
        {"optimizer": {"name": "lamb"}},
        {"task": {"pair": "sop"}},
    ],
    ids=str,
)
def test_settings_that_change_a_step_make_another(changes: dict[str, Any]) -> None:
    assert make_train_step(spec(), accumulation=1) is make_train_step(spec(), accumulation=1)
    assert make_train_step(spec(), accumulation=1) is not make_train_step(spec(), accumulation=2)
    other = spec(**changes)
    assert make_train_step(other, accumulation=1) is not make_train_step(spec(), accumulation=1)


def test_settings_of_rows_and_rates_share_the_step() -> None:
    masking = MaskingSection(rate=0.3)
    other = spec(
        task={"masking": masking, "tokenizer": object(), "best_metric": "mlm_loss"},
        optimizer={"learning_rate": 1.0, "warmup_steps": 9},
    )
    assert make_train_step(other, accumulation=1) is make_train_step(spec(), accumulation=1)
    evaluation = [make_evaluation_step(each.task, each.model) for each in (other, spec())]
    assert evaluation[0] is evaluation[1]


def test_a_task_without_equality_shares_no_step() -> None:
    class Own:
        def build(self) -> Any: ...

        def frozen_models(self) -> Any: ...

        def divisors(self, batch: Any) -> Any: ...

        def loss(self, *_: Any, **__: Any) -> Any: ...

        def score(self, sums: Any) -> Any: ...

    model = define_model(small_task().build)
    first, second = (make_evaluation_step(Own(), model) for _ in range(2))
    assert first is not second


def finetune_task(**changes: Any) -> FinetuneTask:
    base = small_task()
    heads = HeadsSection(
        mlm=False, next_sentence=False, task="sequence_classification", labels=("a", "b")
    )
    made = FinetuneTask(architecture=base.architecture, execution=base.execution, heads=heads)
    return dataclasses.replace(made, **changes)


def test_class_weights_and_freezing_make_another_step() -> None:
    assert finetune_task() == finetune_task()
    assert hash(finetune_task()) == hash(finetune_task())
    assert finetune_task(class_weights=(1.0, 2.0)) != finetune_task()
    assert finetune_task(frozen=frozenset(("pooler/bias",))) != finetune_task()


def test_freezing_changes_the_optimizer_but_rates_do_not() -> None:
    axes = define_model(finetune_task().build).axes

    def made(**changes: Any) -> object:
        section = FinetuneOptimizerSection.model_validate(changes)
        return make_finetune_optimizer(section, axes, groups=Bert.groups, depth=2)

    plain = made()
    assert made(learning_rate=1e-3, schedule="constant") is plain
    assert made(layer_decay=0.9) is not plain
    assert made(freeze=("embeddings",)) is not plain
    assert made(freeze=("embeddings",)) is made(freeze=("embeddings",))


def test_only_recently_used_functions_are_kept() -> None:
    @made_once
    def make(number: int) -> object:
        return object()

    first, second = make(0), make(1)
    for number in range(2, FUNCTIONS_KEPT):
        make(number)
    assert make(0) is first
    make(FUNCTIONS_KEPT)
    assert make(0) is first
    assert make(1) is not second


def test_a_model_has_one_shared_definition() -> None:
    assert define_model(small_task().build) is define_model(small_task().build)
    other = define_model(small_task(intermediate_size=72).build)
    assert other is not define_model(small_task().build)
