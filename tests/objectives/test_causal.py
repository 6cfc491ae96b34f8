"""The objective `causal`: Hugging Face's numbers, what a token depends on, phases that end it."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
import yaml

from bert_jax.data.dataset.reader import Example
from bert_jax.data.rows.unmasked_transform import UnmaskedTransform
from bert_jax.encoders.build import encoder_builder
from bert_jax.model import cross_entropy
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.objectives.sections import CausalObjectiveSection
from bert_jax.runs.open_checkpoints import load_params
from bert_jax.runs.run_directory import open_run
from bert_jax.tasks.task import logits
from bert_jax.train.metrics_writer import read_metrics
from bert_jax.train.state import define_model
from bert_jax.workflows.objective_of_run import objective_of
from tests.interop.hf_checkpoints import (
    bind,
    hf_config,
    hf_model,
    import_run,
    mixed_batch,
    roberta_config,
    save,
    torch_inputs,
)
from tests.objectives.runs import assert_equal_params, config_of
from tests.project import ok, one_phase, refused, refuses, says, write_config
from tests.support import loss_of, relative_error, small_encoder

pytestmark = pytest.mark.slow

MODELS: dict[str, tuple[Any, Any]] = {
    "BERT, L2-H48": (
        transformers.BertLMHeadModel,
        hf_config(is_decoder=True, hidden_size=48, num_attention_heads=3, vocab_size=143),
    ),
    "RoBERTa, L5-H32": (
        transformers.RobertaForCausalLM,
        roberta_config(is_decoder=True, num_hidden_layers=5, intermediate_size=100),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_loss_and_gradients_equal_hugging_faces(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_entropy, "_MOST_PREDICTIONS", 60)  # several parts, the last padded
    kind, config = MODELS[name]
    model = hf_model(kind, config)
    found = import_run(save(model, tmp_path / "hf"), tmp_path / "run")
    assert found.run.settings["objective"]["kind"] == "causal"
    arrays = mixed_batch(config)
    real = arrays["segment_ids"] == 1
    labels = torch.tensor(np.where(real, arrays["input_ids"], -100), dtype=torch.long)
    theirs = model(**torch_inputs(arrays), labels=labels, use_cache=False)
    theirs.loss.backward()

    task, batch = objective_of(found.run), jax.tree.map(jnp.asarray, arrays)

    def compute(params: Any) -> tuple[jax.Array, Any]:
        trained = bind(task.build, params)
        loss, metrics = loss_of(task, trained, batch)
        return loss, (metrics, trained.mlm_logits(trained.hidden(batch, dropout_key=None)))

    compiled = jax.jit(jax.value_and_grad(compute, has_aux=True))
    (loss, (metrics, ours)), gradients = jax.device_get(compiled(found.params))
    logits_of_tokens = theirs.logits.detach().numpy()
    np.testing.assert_allclose(
        ours[real][:, : config.vocab_size], logits_of_tokens[real], rtol=0, atol=1e-5
    )
    assert loss == pytest.approx(theirs.loss.item(), abs=1e-6)
    hits = logits_of_tokens[:, :-1].argmax(-1) == arrays["input_ids"][:, 1:]
    inside = real[:, 1:]
    assert metrics["next_token_accuracy"] == (hits[inside].sum(), inside.sum())
    scores = task.score({key: (float(a), float(b)) for key, (a, b) in metrics.items()})
    assert scores["perplexity"] == pytest.approx(np.exp(theirs.loss.item()), rel=1e-5)
    named = {key: p.grad.numpy() for key, p in model.named_parameters() if p.grad is not None}
    for key, gradient in found.theirs(gradients).items():
        if "key.bias" not in key:  # rounding error: softmax cancels this bias
            assert relative_error(gradient, named[key]) < 1e-4, key


def model_of(encoder: str, heads: HeadsSection, **changes: Any) -> Any:
    """Returns a model with random parameters."""
    execution = Execution(dtype="float32", attention="xla", norm="xla", ffn="xla", loss="xla")
    build = encoder_builder(small_encoder(encoder, **changes).with_dropout(0.0), execution, heads)
    rng, shapes = np.random.default_rng(1), define_model(build).params
    return bind(build, jax.tree.map(lambda leaf: rng.normal(0, 0.2, leaf.shape), shapes))


LENGTH, CHANGED = 40, 23


def rows(ids: Any) -> dict[str, jax.Array]:
    """Returns one row of 40 tokens without padding."""
    tokens = jnp.asarray(ids, jnp.int32)[None]
    return {
        "input_ids": tokens,
        "token_type_ids": jnp.zeros_like(tokens),
        "segment_ids": jnp.ones_like(tokens),
    }


@pytest.mark.parametrize("encoder", ["bert", "modernbert"])
def test_the_state_of_a_token_depends_on_no_later_token(encoder: str) -> None:
    window = {"window": 8} if encoder == "modernbert" else {}
    model = model_of(encoder, CausalObjectiveSection.heads, **window)

    @jax.jit
    def compute(batch: Any) -> Any:
        return model.encoder.every_layer(batch), model.attention_maps(batch)

    ids = np.random.default_rng(0).integers(5, 250, LENGTH)
    other = np.where(np.arange(LENGTH) == CHANGED, (ids + 1) % 250, ids)
    (one, maps), (two, _) = (compute(rows(each)) for each in (ids, other))
    changed = np.abs(one - two).max(axis=-1)[:, 0]
    assert changed[:, :CHANGED].max() == 0.0
    assert changed[-1, CHANGED:].min() > 0.0
    assert np.triu(maps, 1).max() == 0.0
    np.testing.assert_allclose(np.sum(maps, -1), 1.0, rtol=1e-5)


def test_a_sequence_task_reads_the_last_token() -> None:
    heads = {"mlm": False, "next_sentence": False, "labels": ("a", "b"), "causal": True}
    task = HeadsSection.model_validate(heads | {"task": "sequence_classification"})
    model = model_of("bert", task, num_hidden_layers=1)
    batch = rows(np.random.default_rng(0).integers(5, 250, LENGTH))
    batch["segment_ids"] = jnp.where(jnp.arange(LENGTH) < 30, 1, 0)[None]

    @jax.jit
    def compute(batch: Any) -> Any:
        return logits(model, batch, dropout_key=None), model.hidden(batch, dropout_key=None)

    found, hidden = compute(batch)
    only_last = jnp.zeros_like(hidden).at[:, 29].set(hidden[:, 29])
    for states in (hidden, only_last):
        read = model.task_logits(states, batch["segment_ids"])
        np.testing.assert_allclose(read, found, rtol=0, atol=1e-6)


def test_rows_keep_every_token() -> None:
    made = [Example(np.asarray(ids, np.uint16), len(ids), 0) for ids in ([2, 9, 8, 3], [2, 7, 3])]
    transform = UnmaskedTransform(seq_length=9, vocab_size=10, pad_id=0, max_examples=2)
    assert {name: array.tolist() for name, array in transform.batch([made], [[]]).items()} == {
        "input_ids": [[2, 9, 8, 3, 2, 7, 3, 0, 0]],
        "token_type_ids": [[0] * 9],
        "segment_ids": [[1, 1, 1, 1, 2, 2, 2, 0, 0]],
        "position_ids": [[0, 1, 2, 3, 0, 1, 2, 0, 0]],
    }
    with refuses("dataset.token_id", found=9):
        UnmaskedTransform(seq_length=9, vocab_size=9, pad_id=0).batch([made[:1]], [[]])


@pytest.fixture(scope="module")
def switched(project: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of four causal steps and four steps with masks: its configuration and directory."""
    folder = tmp_path_factory.mktemp("switched")
    dataset = folder / "dataset"
    examples = write_config(folder / "examples.yaml", one_phase(project))
    ok("examples", examples, f"examples.output={dataset}", "examples.kind=doc_sentences")
    config, run_dir = config_of(project, folder, "causal", "bert", dataset)
    values = yaml.safe_load(config.read_text())
    (phase,) = values["train"]["phases"]
    masked = {"kind": "roberta", "masking": {"rate": 0.4}}
    values["train"]["phases"] = [phase | {"steps": 4}, phase | {"steps": 4, "objective": masked}]
    values["train"]["checkpoint"] = {"every": 3, "keep_last": 9}
    values["train"]["evaluation"]["at_most"] = {"mlm_loss": 9.0}
    config = write_config(folder / "run.yaml", values)
    ok("pretrain", config)
    return config, Path(run_dir)


def test_a_limit_compares_a_loss_with_the_start_of_its_objective(
    switched: tuple[Path, Path],
) -> None:
    config, run_dir = switched
    start, causal, masked = read_metrics(run_dir, kind="validation")
    assert start.keys() == causal.keys() | masked.keys()
    assert start["loss"] == start["next_token_loss"]
    assert 6 < start["mlm_loss"] < 7
    # The total losses of two objectives differ.
    line = refused("pretrain", config, "train.evaluation.at_most={loss: 1}")
    says(line, key="evaluation.unknown_score", allowed=["next_token_loss", "mlm_loss"])


def test_a_job_changes_from_causal_to_masks(tmp_path: Path, switched: tuple[Path, Path]) -> None:
    config, run_dir = switched
    lines = [json.loads(each) for each in (run_dir / "metrics.jsonl").read_text().splitlines()]
    names = {each["step"]: set(each) for each in lines if "loss" in str(each) and "step" in each}
    assert "perplexity" in str(names[4])
    assert "mlm_loss" in str(names[8])
    copy = Path(shutil.copytree(run_dir, tmp_path / "resumed"))
    for step in (4, 6, 8):
        shutil.rmtree(copy / "checkpoints" / str(step))
    assert "resuming at step 3 of 8" in ok("pretrain", config, f"run_dir={copy}")
    assert_equal_params(copy, run_dir)


def test_a_checkpoint_has_the_attention_of_its_phase(
    tmp_path: Path, switched: tuple[Path, Path]
) -> None:
    _, run_dir = switched
    run = open_run(run_dir)
    assert not run.heads.causal
    for step, causal, name, score in (
        (3, True, "BertLMHeadModel", "perplexity"),
        (8, False, "BertForMaskedLM", "mlm_loss"),
    ):
        assert load_params(run, checkpoint=str(step)).heads.causal == causal
        exported = tmp_path / str(step)
        ok("export", run_dir, exported, "--checkpoint", step)
        config = json.loads((exported / "config.json").read_text())
        assert config["architectures"] == [name]
        assert config.get("is_decoder", False) == causal
        assert score in ok("evaluate", run_dir, "--checkpoint", step)
    result = refused("export", run_dir, tmp_path / "tf", "--to", "tf", "--checkpoint", 3)
    assert result.key == "export.causal"
    assert refused("fill-mask", tmp_path / "3", "a [MASK]").key == "run.causal"


def test_phases_that_do_not_fit_are_refused(project: Path, switched: tuple[Path, Path]) -> None:
    config, _ = switched
    pairs = one_phase(project)["examples"]["output"]
    change = ["train.phases.1.objective={kind: bert}", f"train.phases.1.dataset={pairs}"]
    result = refused("pretrain", config, *change, "train.evaluation=null")
    says(result, key="objective.phases", last="bert")
    assert refused("pretrain", config, change[0]).key == "objective.pairing"
    result = refused("pretrain", config, "train.phases.0.max_predictions=5")
    assert result.key == "setting.ignored"
    result = refused("pretrain", config, "train.phases.0.objective={kind: roberta}")
    assert result.key == "run.other_setting"
    weights = "train.evaluation.best_by={next_token_loss: 1, mlm_loss: 1}"
    place = "train.evaluation.best_by"
    says(refused("pretrain", config, weights), key="evaluation.scores_apart", place=place)
    result = refused("pretrain", config, "train.phases.1.objective={kind: robrta}")
    assert result.key == "setting.value"
