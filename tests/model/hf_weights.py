"""Our parameters under Hugging Face's names and shapes: for parameters and for gradients alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertForPreTraining

from bert_jax.model.config import Architecture

# A 2018 "gelu" is Hugging Face's gelu_new, the tanh form; its "gelu" is the exact one.
HF_ACTIVATIONS = {"gelu_tanh": "gelu_new", "gelu_erf": "gelu", "relu": "relu"}


def hf_model(architecture: Architecture) -> BertForPreTraining:
    """A Hugging Face model of the same architecture, dropout off, attention written out."""
    config = BertConfig(
        vocab_size=architecture.vocab_size,
        hidden_size=architecture.hidden_size,
        num_hidden_layers=architecture.num_hidden_layers,
        num_attention_heads=architecture.num_attention_heads,
        intermediate_size=architecture.intermediate_size,
        max_position_embeddings=architecture.max_position_embeddings,
        type_vocab_size=architecture.type_vocab_size,
        hidden_act=HF_ACTIVATIONS[architecture.hidden_act],
        layer_norm_eps=architecture.layer_norm_eps,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )
    return BertForPreTraining(config).train()


def load_into(model: BertForPreTraining, params: dict[str, Any], *, vocab_size: int) -> None:
    """Copies our parameters into a Hugging Face model, each of its own exactly once."""
    tensors = to_hf(params, vocab_size=vocab_size)
    own = dict(model.named_parameters())  # tied ones are named once
    assert own.keys() == tensors.keys()
    with torch.no_grad():
        for name, parameter in own.items():
            assert tuple(parameter.shape) == tensors[name].shape, name
            parameter.copy_(torch.tensor(tensors[name]))


def to_hf(params: dict[str, Any], *, vocab_size: int) -> dict[str, np.ndarray]:
    """Renames, transposes and unstacks a tree of parameters, or of their gradients.

    Only moves numbers, so the same map serves both. Rows that pad the vocabulary are cut off.
    """
    encoder, head = params["encoder"], params["mlm"]
    embeddings, layers = encoder["embeddings"], encoder["layers"]
    depth = np.shape(layers["output"]["bias"])[0]
    found = {
        "bert.embeddings.word_embeddings.weight": embeddings["word"][:vocab_size],
        "bert.embeddings.position_embeddings.weight": embeddings["position"],
        "bert.embeddings.token_type_embeddings.weight": embeddings["type"],
        **_norm("bert.embeddings.LayerNorm", embeddings["norm"]),
        **_dense("bert.pooler.dense", params["pooler"]["dense"]),
        **_dense("cls.predictions.transform.dense", head["transform"]),
        **_norm("cls.predictions.transform.LayerNorm", head["norm"]),
        "cls.predictions.bias": head["bias"][:vocab_size],
        **_dense("cls.seq_relationship", params["next_sentence"]["classifier"]),
    }
    for index in range(depth):
        found |= _layer(f"bert.encoder.layer.{index}", layers, index)
    return {name: np.asarray(value) for name, value in found.items()}


def _layer(prefix: str, layers: dict[str, Any], index: int) -> dict[str, np.ndarray]:
    def one(part: dict[str, Any]) -> dict[str, np.ndarray]:
        return {name: np.asarray(value)[index] for name, value in part.items()}

    attention = layers["attention"]
    found: dict[str, np.ndarray] = {}
    for name in ("query", "key", "value"):
        found |= _dense(f"{prefix}.attention.self.{name}", one(attention[name]), _merge_out)
    found |= _dense(f"{prefix}.attention.output.dense", one(attention["output"]), _merge_in)
    found |= _norm(f"{prefix}.attention.output.LayerNorm", one(layers["attention_norm"]))
    found |= _dense(f"{prefix}.intermediate.dense", one(layers["intermediate"]))
    found |= _dense(f"{prefix}.output.dense", one(layers["output"]))
    found |= _norm(f"{prefix}.output.LayerNorm", one(layers["output_norm"]))
    return found


def _merge_out(kernel: np.ndarray) -> np.ndarray:
    """[D, heads, columns] → [D, D]."""
    return kernel.reshape(kernel.shape[0], -1)


def _merge_in(kernel: np.ndarray) -> np.ndarray:
    """[heads, columns, D] → [D, D]."""
    return kernel.reshape(-1, kernel.shape[-1])


def _dense(
    prefix: str,
    part: dict[str, Any],
    merge: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> dict[str, np.ndarray]:
    return {
        f"{prefix}.weight": merge(np.asarray(part["kernel"])).T,
        f"{prefix}.bias": np.asarray(part["bias"]).reshape(-1),
    }


def _norm(prefix: str, part: dict[str, Any]) -> dict[str, np.ndarray]:
    return {
        f"{prefix}.weight": np.asarray(part["scale"]),
        f"{prefix}.bias": np.asarray(part["bias"]),
    }
