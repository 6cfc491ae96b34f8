"""The losses of TinyBERT (arXiv 1909.10351), next to the same losses of PyTorch models."""

import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, kl_div, mse_loss
from transformers import BertForMaskedLM

from bert_jax.model.section import Execution
from bert_jax.objectives.distill import DistillObjectiveSection
from bert_jax.task import PROJECTION
from bert_jax.train.frozen import load_frozen
from tests.interop.hf_checkpoints import (
    bind,
    hf_config,
    hf_model,
    import_run,
    mixed_batch,
    save,
    torch_inputs,
    under_their_names,
)
from tests.model.parts import fresh_params
from tests.support import loss_of, relative_error
from tests.train.harness import mesh_of

MATCHED = (0, 3)  # layers of the teacher for the layers of the student


def attention_scores(model: BertForMaskedLM, states: Any, layer: int) -> torch.Tensor:
    """Returns the scores of a layer before the softmax, [B, H, L, L]."""
    core: Any = model.bert.encoder.layer[layer].attention.self
    heads, x = model.config.num_attention_heads, states[layer]
    query, key = (
        each(x).unflatten(-1, (heads, -1)).transpose(1, 2) for each in (core.query, core.key)
    )
    return query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])


def tinybert_loss(
    student: BertForMaskedLM,
    teacher: BertForMaskedLM,
    batch: dict[str, np.ndarray],
    projection: dict[str, torch.Tensor] | None,
) -> torch.Tensor:
    """Returns 0.5 · hidden + 0.25 · attention + soft + MLM loss."""
    inputs = torch_inputs(batch)
    ours = student(**inputs, output_hidden_states=True)
    with torch.no_grad():
        theirs = teacher(**inputs, output_hidden_states=True)
    is_token = inputs["attention_mask"] == 1
    states = list(ours.hidden_states)
    if projection is not None:
        names = ["embeddings"] + ["layers"] * (len(states) - 1)
        states = [state @ projection[name] for state, name in zip(states, names, strict=True)]
    matched = [theirs.hidden_states[at] for at in (0, *(layer + 1 for layer in MATCHED))]
    hidden = sum(
        mse_loss(one[is_token], other[is_token]) for one, other in zip(states, matched, strict=True)
    )
    pairs = is_token[:, :, None] & is_token[:, None, :]
    attention = sum(
        mse_loss(
            attention_scores(student, ours.hidden_states, at).permute(0, 2, 3, 1)[pairs],
            attention_scores(teacher, theirs.hidden_states, other).permute(0, 2, 3, 1)[pairs],
        )
        for at, other in enumerate(MATCHED)
    )
    chosen = torch.from_numpy(batch["masked_lm_weights"]) > 0
    positions = torch.from_numpy(batch["masked_lm_positions"]).long()
    row = torch.arange(len(positions))[:, None].expand_as(positions)
    labels = torch.from_numpy(batch["masked_lm_ids"]).long()[chosen]
    logits = [each.logits[row, positions][chosen] for each in (ours, theirs)]
    soft = kl_div(
        *(each.log_softmax(-1) for each in logits), reduction="batchmean", log_target=True
    )
    return 0.5 * hidden + 0.25 * attention + soft + cross_entropy(logits[0], labels)


@pytest.mark.parametrize("width", [32, 24], ids=["equal widths", "projected"])
def test_loss_and_gradients_are_those_of_pytorch(tmp_path: Path, width: int) -> None:
    student = hf_model(BertForMaskedLM, hf_config(hidden_size=width), seed=1)
    teacher = hf_model(BertForMaskedLM, hf_config(num_hidden_layers=4), seed=2)
    ours = import_run(save(student, tmp_path / "student"), tmp_path / "student-run")
    import_run(save(teacher, tmp_path / "teacher"), tmp_path / "teacher-run")
    settings = {"hidden_weight": 0.5, "attention_weight": 0.25, "temperature": 1.0}
    settings |= {"soft_weight": 1.0, "mlm_weight": 1.0, "cosine_weight": 0.0}
    task = DistillObjectiveSection.model_validate(
        {"teacher": str(tmp_path / "teacher-run"), "initial_layers": None, **settings}
        | {"matched_layers": MATCHED}
    ).make(
        architecture=ours.run.architecture,
        execution=Execution(dtype="float32"),
        tokenizer=ours.run.tokenizer,
    )
    batch, frozen = mixed_batch(student.config), load_frozen(task, mesh_of((1, 1, 1))).params
    params, projection = ours.params, None
    assert (PROJECTION in fresh_params(task)) == (width != 32)
    if width != 32:
        params = params | {PROJECTION: fresh_params(task)[PROJECTION]}
        projection = {
            name: torch.tensor(each["kernel"], requires_grad=True)
            for name, each in params[PROJECTION].items()
        }

    @jax.jit
    @jax.value_and_grad
    def compute(params: Any, batch: Any) -> Any:
        return loss_of(task, bind(task.build, params), batch, frozen=frozen)[0]

    found, gradient = jax.device_get(compute(params, batch))
    expected = tinybert_loss(student, teacher, batch, projection)
    expected.backward()
    assert found == pytest.approx(expected.item(), rel=1e-6)
    slopes = {name: each.grad for name, each in student.named_parameters()}
    for name, each in (projection or {}).items():
        assert relative_error(gradient[PROJECTION][name]["kernel"], each.grad) < 1e-4
    trained = {part: gradient[part] for part in ours.params}
    for name, slope in under_their_names(trained, ours.run.architecture, ours.run.heads).items():
        other = slopes[name]
        assert other is not None, name
        assert relative_error(slope, other) < 1e-4, name
