"""Matrix products of float32 run in full precision on every device."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.section import Execution, HeadsSection
from bert_jax.task import Task
from bert_jax.tasks.batches import WEIGHTS
from bert_jax.tasks.task import FinetuneTask
from bert_jax.train.state import define_model
from tests.model.parts import model_of
from tests.support import loss_of, small_batch, small_encoder, small_task
from tests.train.harness import Setting

_PRODUCT = re.compile(
    r"stablehlo\.dot_general .*precision = \[(\w+), \w+\].* : "
    r"\(tensor<([\dx]*)(\w+)>, tensor<([\dx]*)(\w+)>\)"
)
FUSED = {"attention": "fused", "loss": "fused"}
pytestmark = pytest.mark.slow

CLASSIFIER = FinetuneTask(
    architecture=small_encoder("modernbert", window=8, pooling="mean"),
    execution=Execution(dtype="float32"),
    heads=HeadsSection(mlm=False, pooler=False, task="sequence_classification", labels=("a", "b")),
)


def products(task: Task, *, platform: str) -> set[tuple[str, str, str, bool]]:
    """Returns precision, dtypes, and whether the vocabulary is an axis, of a step's products."""
    batch: Any = small_batch(rows=4)
    batch |= {"label": batch["input_ids"][:, 0] % 2, WEIGHTS: np.ones(4, np.float32)}
    batch = jax.tree.map(jnp.asarray, batch)

    def loss(params: Any) -> Any:
        return loss_of(task, model_of(task, params), batch, dropout_key=jax.random.key(0))[0]

    traced = jax.jit(jax.grad(loss)).trace(define_model(task.build).params)
    found = _PRODUCT.findall(traced.lower(lowering_platforms=(platform,)).as_text())
    assert len(found) > 10
    return {
        (precision, one, other, "256" in (*sizes.split("x"), *more.split("x")))
        for precision, sizes, one, more, other in found
    }


@pytest.mark.parametrize(
    ("platform", "task"),
    [
        ("tpu", small_task(hidden_dropout_prob=0.1)),
        ("tpu", Setting(objective="electra", encoder="electra").task),
        ("tpu", Setting(objective="roberta", encoder="modernbert").task),
        ("tpu", CLASSIFIER),
        ("cpu", small_task(execution=FUSED)),  # products of interpreted kernels
    ],
    ids=["bert", "electra", "modernbert", "classifier", "kernels"],
)
def test_a_float32_model_has_no_other_products(platform: str, task: Task) -> None:
    assert {
        (precision, one, other) for precision, one, other, _ in products(task, platform=platform)
    } == {("HIGHEST", "f32", "f32")}


def test_a_bfloat16_model_has_them_in_its_float32_parts() -> None:
    """These parts are the next-sentence head and the token types, but not the decoder."""
    found = products(small_task(dtype="bfloat16"), platform="tpu")
    assert {each[:3] for each in found if not each[3]} == {
        ("HIGHEST", "f32", "f32"),
        ("DEFAULT", "bf16", "bf16"),
    }
