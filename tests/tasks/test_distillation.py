"""Fine-tuning with a teacher: the loss next to PyTorch's, and real runs."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from etils import epath
from flax import nnx
from torch.nn import functional

from bert_jax.config import parse_config
from bert_jax.runs.open_checkpoints import read_checkpoints
from bert_jax.runs.teacher import TEACHER, Teacher
from bert_jax.tasks.distillation import DistilledTask
from bert_jax.tasks.task import FinetuneTask, logits
from bert_jax.train.state import define_model
from bert_jax.verbs.finetune import finetune
from tests.project import refuses
from tests.support import loss_of
from tests.tasks.runs import tiny_config
from tests.tasks.test_task import LOSSES, Expected, batch_of, random_params
from tests.train.harness import QUICK

TEMPERATURE, WEIGHT = 3.0, 0.25


def divergence(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Returns the soft-target loss of Hugging Face's `run_squad_w_distillation.py`."""
    soft = functional.softmax(theirs / TEMPERATURE, dim=-1)
    logs = functional.log_softmax(ours / TEMPERATURE, dim=-1)
    return torch.nn.KLDivLoss(reduction="batchmean")(logs, soft) * TEMPERATURE**2


def soft_loss(
    kind: str, ours: torch.Tensor, theirs: torch.Tensor, batch: dict[str, torch.Tensor]
) -> torch.Tensor:
    if kind == "several labels":
        pairs = [
            torch.stack([scores, torch.zeros_like(scores)], dim=-1).flatten(0, 1)
            for scores in (ours, theirs)
        ]
        return divergence(*pairs)
    if kind == "a number":
        return functional.mse_loss(ours, theirs)
    if kind == "tokens":
        labelled = batch["labels"] >= 0
        return divergence(ours[labelled], theirs[labelled])
    if kind == "an answer":
        outside = batch["segment_ids"] == 0
        ours, theirs = (x.masked_fill(outside[..., None], -1e9) for x in (ours, theirs))
        return torch.stack([divergence(ours[..., at], theirs[..., at]) for at in (0, 1)]).mean()
    return divergence(ours, theirs)


@pytest.mark.parametrize("kind", [kind for kind in LOSSES if kind != "class weights"])
def test_the_loss_is_the_sum_of_both_terms(kind: str) -> None:
    plain, values, expected = LOSSES[kind]
    task, batch = distilled(plain), batch_of(**values)
    student = random_params(plain)
    teacher = jax.tree.map(lambda leaf: leaf[::-1] * 0.9, student)
    graphdef = define_model(task.build).graphdef

    def compute(params: Any, teacher: Any) -> Any:
        found = loss_of(task, nnx.merge(graphdef, params), batch, frozen={TEACHER: teacher})
        models = (nnx.merge(graphdef, each) for each in (params, teacher))
        return *found, [logits(model, batch, dropout_key=None) for model in models]

    arguments = jax.tree.map(jnp.asarray, (student, teacher))
    compiled: Any = jax.jit(compute).lower(*arguments)
    loss, metrics, scores = compiled.compile(compiler_options=QUICK)(*arguments)
    ours, theirs = (torch.tensor(np.asarray(each))[:-1] for each in scores)
    arrays = {name: torch.tensor(np.asarray(each))[:-1] for name, each in batch.items()}
    wanted = hard_and_soft(kind, expected, ours, theirs, arrays)
    assert float(loss) == pytest.approx(wanted, rel=1e-5)
    sums = {name: (float(total), float(count)) for name, (total, count) in metrics.items()}
    assert task.score(sums)["loss"] == pytest.approx(wanted, rel=1e-5)


def hard_and_soft(
    kind: str,
    expected: Expected,
    ours: torch.Tensor,
    theirs: torch.Tensor,
    batch: dict[str, torch.Tensor],
) -> float:
    hard, soft = expected(ours, batch.__getitem__), soft_loss(kind, ours, theirs, batch)
    return float((1 - WEIGHT) * hard + WEIGHT * soft)


def distilled(task: FinetuneTask) -> DistilledTask:
    teacher = Teacher(
        architecture=task.architecture,
        execution=task.execution,
        heads=task.heads,
        directory=epath.Path("nowhere"),
        checkpoint="auto",
    )
    return DistilledTask(
        architecture=task.architecture,
        execution=task.execution,
        heads=task.heads,
        teacher=teacher,
        temperature=TEMPERATURE,
        weight=WEIGHT,
        tokenizer=None,  # pyright: ignore[reportArgumentType] (only `load` needs one)
    )


def test_a_student_learns_only_from_its_teacher(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, epochs=2)
    finetune(parse_config(config))
    teacher = Path(config["run_dir"])

    # Wrong labels, which a weight of 1 ignores.
    table = Path(config["finetune"]["task"]["train"])
    swapped = table.with_name("swapped.csv")
    text = table.read_text().replace(",good\n", ",?\n").replace(",bad\n", ",good\n")
    swapped.write_text(text.replace(",?\n", ",bad\n"))
    student = config | {"run_dir": str(tmp_path / "student")}
    student["finetune"] = config["finetune"] | {
        "distill_from": str(teacher),
        "distill_weight": 1.0,
        "task": config["finetune"]["task"] | {"train": str(swapped)},
    }
    outcome = finetune(parse_config(student))
    assert outcome.scores["accuracy"] > 0.9
    hashes = read_checkpoints(
        student["run_dir"], lambda found: found.progress(found.on_disk.newest() or 0)["frozen"]
    )
    assert hashes.keys() == {TEACHER}

    other = json.loads(json.dumps(student)) | {"run_dir": str(tmp_path / "other")}
    for run_dir, key in (
        (tmp_path / "run", "distill.other_task"),
        (tmp_path / "nothing", "run.missing"),
    ):
        other["finetune"]["distill_from"] = str(run_dir)
        with refuses(key):
            finetune(parse_config(other))
    del other["finetune"]["distill_from"]
    with refuses("setting.ignored", found="1.0", allowed="distill_from"):
        parse_config(other)
