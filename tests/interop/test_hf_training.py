"""Training an imported model equals training with google-research/bert's optimizer in PyTorch.

Our compiled train step is compared with torch's gradients and a transcription of the optimizer.
Checkpoint and batches are equal, and dropout is off.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import BertForPreTraining

from bert_jax.optim.optimizer import make_optimizer
from bert_jax.optim.schedule import pretraining_schedule
from bert_jax.optim.sections import OptimizerSection, ScheduleSegment
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.train.compiled import lower_train_step
from bert_jax.train.state import TrainState, abstract_state, define_model
from bert_jax.train.step import StepLimits, StepSpec
from bert_jax.workflows.objective_of_run import objective_of
from tests.interop.hf_checkpoints import (
    Imported,
    bind,
    google_loss,
    hf_config,
    hf_model,
    import_run,
    mixed_batch,
    save,
    torch_inputs,
)
from tests.interop.reference_adamw import CLIP, ReferenceAdamW
from tests.support import on_mesh, relative_error

STEPS, TRAIN_STEPS, PEAK, WARMUP = 10, 20, 1e-3, 4
COMPARED = (1, STEPS)


class Trained(NamedTuple):
    """Parameters, outputs and losses of one implementation after some steps."""

    params: dict[str, np.ndarray]  # by Hugging Face's names, without padding rows
    mlm: np.ndarray  # [real tokens, vocab], without padding pieces
    next_sentence: np.ndarray  # [B, 2]
    losses: list[float]  # losses of every step so far
    norms: list[float]  # gradient norms of every step, before clipping


def train_ours(
    found: Imported, batches: Sequence[dict[str, np.ndarray]], section: OptimizerSection
) -> dict[int, Trained]:
    """Trains with our compiled step, and returns the results after each step in `COMPARED`."""
    task = objective_of(found.run)
    definition = define_model(task.build)
    schedule = pretraining_schedule(
        [ScheduleSegment(TRAIN_STEPS, section.learning_rate, section.warmup_steps)]
    )
    optimizer = make_optimizer(section, definition.axes)
    mesh = make_mesh(MeshSection(), jax.devices()[:1])
    abstract = abstract_state(definition, optimizer, mesh)
    first = TrainState(
        step=np.int32(0),
        rng=np.zeros(2, np.uint32),
        params=found.params,
        opt_state=optimizer.init(found.params),
        healthy=np.bool_(True),
    )
    state = jax.tree.map(
        lambda leaf, like: jax.device_put(np.array(leaf), like.sharding), first, abstract
    )
    compared, losses, norms = {}, [], []
    with jax.set_mesh(mesh):
        spec = StepSpec(task=task, model=definition, optimizer=optimizer)
        first_batch = on_mesh(batches[0], mesh)
        step = lower_train_step(spec, abstract, first_batch, schedule, {}, accumulation=1).compile()
        for count, batch in enumerate(batches, start=1):
            state, (metrics, _) = step(state, on_mesh(batch, mesh), StepLimits(), schedule, {})
            losses.append(float(metrics["loss"][0]))
            norms.append(float(metrics["gradient_norm"][0]))
            if count in COMPARED:
                params = jax.device_get(state.params)
                logits = logits_of(found, params, batches[0])
                compared[count] = Trained(found.theirs(params), *logits, [*losses], [*norms])
    return compared


def logits_of(
    found: Imported, params: Any, batch: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the MLM logits of all tokens except padding, and the next-sentence logits."""
    real = batch["segment_ids"] == 1
    everywhere = jnp.broadcast_to(jnp.arange(real.shape[1]), real.shape)

    @jax.jit
    def compute(params: Any) -> tuple[jax.Array, jax.Array]:
        model = bind(found.run.build, params)
        hidden = model.hidden(jax.tree.map(jnp.asarray, batch), dropout_key=None)
        pooled = model.pooler(hidden[:, :1])
        return model.mlm_logits(hidden, everywhere), model.next_sentence(pooled)[:, 0]

    mlm, next_sentence = jax.device_get(compute(params))
    return mlm[real][:, : found.run.architecture.vocab_size], next_sentence


def train_hf(
    model: BertForPreTraining,
    batches: Sequence[dict[str, np.ndarray]],
    section: OptimizerSection,
) -> dict[int, Trained]:
    """Trains with torch and the reference optimizer, and returns results as `train_ours` does."""
    optimizer = ReferenceAdamW(
        model,
        peak=section.learning_rate,
        train_steps=TRAIN_STEPS,
        warmup_steps=section.warmup_steps,
    )
    real = batches[0]["segment_ids"] == 1
    compared, losses = {}, []
    for count, batch in enumerate(batches, start=1):
        loss = google_loss(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if count in COMPARED:
            with torch.no_grad():
                output = model(**torch_inputs(batches[0]))
            compared[count] = Trained(
                parameters(model),
                output.prediction_logits.numpy()[real],
                output.seq_relationship_logits.numpy(),
                [*losses],
                [*optimizer.norms],
            )
    return compared


def parameters(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: param.detach().numpy().copy() for name, param in model.named_parameters()}


@pytest.mark.parametrize("warmup", [0, WARMUP])
def test_updates_equal_google_researchs_and_losses_torchs(tmp_path: Path, warmup: int) -> None:
    """Compares parameter changes, because whole parameters would hide differences."""
    config = hf_config(
        hidden_act="gelu",
        initializer_range=0.1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = hf_model(BertForPreTraining, config)
    found = import_run(save(model, tmp_path / "hf"), tmp_path / "run")
    batches = [mixed_batch(config, seed=seed) for seed in range(STEPS)]
    section = OptimizerSection(learning_rate=PEAK, warmup_steps=warmup)
    start = parameters(model)
    both = train_ours(found, batches, section), train_hf(model, batches, section)
    for steps in COMPARED:
        ours, theirs = (side[steps] for side in both)
        assert ours.params.keys() == theirs.params.keys()
        assert ours.norms == pytest.approx(theirs.norms, rel=1e-5)
        assert max(theirs.norms) > CLIP
        assert len(theirs.losses) == steps
        assert ours.losses == pytest.approx(theirs.losses, rel=1e-6)
        for quantity in ("mlm", "next_sentence"):
            one, other = (getattr(side, quantity) for side in (ours, theirs))
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
        for name, before in start.items():
            one, other = (side.params[name] - before for side in (ours, theirs))
            if steps == 1 and warmup:  # the rate at step 0 of a warm-up is 0
                assert not one.any()
                assert not other.any()
            elif "attention.self.key.bias" in name:
                # The gradient consists of rounding errors, as in test_hf_parity.py.
                assert max(np.abs(one).max(), np.abs(other).max()) < 0.01 * PEAK * steps
            else:
                assert relative_error(one, other) <= 1e-4, name
