"""Helpers that several test files use."""

from typing import Any

import jax
import numpy as np

from bert_jax.encoders.bert.section import BertArchitecture
from bert_jax.encoders.registry import SECTIONS
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import Execution
from bert_jax.objectives.masked_lm import MaskedLanguageModel
from bert_jax.objectives.registry import DEFAULT, make_objective
from bert_jax.parallel.sharding_rules import batch_sharding
from bert_jax.task import HostBatch, Rngs, Task
from bert_jax.train.frozen import bind


def small_encoder(kind: str, **changes: Any) -> EncoderArchitecture:
    """Returns sizes for a tensor axis of 1, 2, 4 or 8. The vocabulary of 250 is padded to 256."""
    values: dict[str, Any] = {
        "vocab_size": 250,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "intermediate_size": 128,
        "max_position_embeddings": 64,
    }
    section, decodes = SECTIONS[kind], "enhanced_mask_decoder" in changes
    chosen = section.generator_type if decodes else section.architecture_type
    assert chosen is not None
    if "embedding_size" in chosen.model_fields:
        values["embedding_size"] = 48  # the embeddings may be narrower than the layers
    if "num_key_value_heads" in chosen.model_fields:
        heads = changes.get("num_attention_heads", values["num_attention_heads"])
        values["num_key_value_heads"] = heads // 2  # each serves two heads of queries
    if "position_buckets" in chosen.model_fields:
        values["position_buckets"] = 8  # rows are longer than the exact half
    return chosen.model_validate(values | changes)


def small_architecture(**changes: Any) -> BertArchitecture:
    """Returns the sizes of `small_encoder` for BERT."""
    found = small_encoder("bert", **changes)
    assert isinstance(found, BertArchitecture)
    return found


def small_task(
    *,
    kind: str = "bert",
    dtype: str = "float32",
    execution: dict[str, Any] | None = None,
    **changes: Any,
) -> MaskedLanguageModel:
    """Returns the BERT objective for a `small_encoder`; `small_batch` makes its rows."""
    made = make_objective(
        DEFAULT,
        architecture=small_encoder(kind, **changes),
        execution=Execution.model_validate({"dtype": dtype, **(execution or {})}),
        tokenizer=None,  # pyright: ignore[reportArgumentType] (only `features` needs one)
    )
    assert isinstance(made, MaskedLanguageModel)
    return made


def small_batch(
    *, rows: int = 16, length: int = 32, predictions: int = 6, vocab: int = 250, seed: int = 0
) -> dict[str, np.ndarray]:
    """Returns a batch whose rows differ in length and number of masks."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(8, length + 1, rows)
    inside = np.arange(length)[None] < lengths[:, None]
    masks = rng.integers(1, predictions + 1, rows)
    return {
        "input_ids": np.where(inside, rng.integers(5, vocab, (rows, length)), 0).astype(np.int32),
        "token_type_ids": (inside & (np.arange(length) > 5)).astype(np.int32),
        "segment_ids": inside.astype(np.int32),
        "masked_lm_positions": rng.integers(0, 8, (rows, predictions)).astype(np.int32),
        "masked_lm_ids": rng.integers(5, vocab, (rows, predictions)).astype(np.int32),
        "masked_lm_weights": (np.arange(predictions)[None] < masks[:, None]).astype(np.float32),
        "next_sentence_labels": rng.integers(0, 2, (rows, 1)).astype(np.int32),
        "cls_positions": np.zeros((rows, 1), np.int32),
        "next_sentence_weights": np.ones((rows, 1), np.float32),
    }


def loss_of(
    task: Task,
    model: Any,
    batch: Any,
    *,
    dropout_key: Any = None,
    whole: Any = None,
    frozen: Any = None,
) -> tuple[jax.Array, Any]:
    """Returns the loss and metrics of a batch, or of a microbatch of the batch `whole`.

    `frozen` has the parameters of the task's frozen models.
    """
    divisors = task.divisors(batch if whole is None else whole)
    rngs = Rngs(jax.random.key(0), dropout_key)
    return task.loss(model, batch, divisors=divisors, rngs=rngs, frozen=bind(task, frozen or {}))


def on_mesh(batch: HostBatch, mesh: jax.sharding.Mesh) -> Any:
    """Shards a batch over a mesh."""
    return jax.device_put(batch, batch_sharding(mesh))


def relative_error(found: Any, expected: Any) -> float:
    """‖found − expected‖ / ‖expected‖."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    return float(np.linalg.norm(found - expected) / max(np.linalg.norm(expected), 1e-30))
