"""Transcription of the forward passes of google-research/bert to NumPy, in float64.

Sources: the paper, and google-research/bert's `modeling.py` and `run_pretraining.py`. LayerNorm is
over the last axis with epsilon 1e-12, GELU has its tanh form, −10000 is added to the scores of
padding, a tanh layer pools [CLS], and the MLM head is tied to the embedding table.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

Variables = Mapping[str, np.ndarray]


class Config(NamedTuple):
    """The keys of `bert_config.json` that determine shapes."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int


class Outputs(NamedTuple):
    hidden: np.ndarray  # [B, L, D]
    pooled: np.ndarray  # [B, D]
    mlm: np.ndarray  # [B, P, V]
    next_sentence: np.ndarray  # [B, 2]


def encoder_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of all variables of `BertModel`, including the pooler."""
    width, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "bert/embeddings/word_embeddings": (config.vocab_size, width),
        "bert/embeddings/token_type_embeddings": (config.type_vocab_size, width),
        "bert/embeddings/position_embeddings": (config.max_position_embeddings, width),
        "bert/embeddings/LayerNorm/beta": (width,),
        "bert/embeddings/LayerNorm/gamma": (width,),
    }
    for index in range(config.num_hidden_layers):
        layer = f"bert/encoder/layer_{index}"
        for name in ("query", "key", "value"):
            shapes[f"{layer}/attention/self/{name}/kernel"] = (width, width)
            shapes[f"{layer}/attention/self/{name}/bias"] = (width,)
        shapes[f"{layer}/attention/output/dense/kernel"] = (width, width)
        shapes[f"{layer}/attention/output/dense/bias"] = (width,)
        shapes[f"{layer}/attention/output/LayerNorm/beta"] = (width,)
        shapes[f"{layer}/attention/output/LayerNorm/gamma"] = (width,)
        shapes[f"{layer}/intermediate/dense/kernel"] = (width, inner)
        shapes[f"{layer}/intermediate/dense/bias"] = (inner,)
        shapes[f"{layer}/output/dense/kernel"] = (inner, width)
        shapes[f"{layer}/output/dense/bias"] = (width,)
        shapes[f"{layer}/output/LayerNorm/beta"] = (width,)
        shapes[f"{layer}/output/LayerNorm/gamma"] = (width,)
    shapes["bert/pooler/dense/kernel"] = (width, width)
    shapes["bert/pooler/dense/bias"] = (width,)
    return shapes


def pretraining_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of all variables of `run_pretraining.py`."""
    width = config.hidden_size
    return {
        **encoder_shapes(config),
        "cls/predictions/transform/dense/kernel": (width, width),
        "cls/predictions/transform/dense/bias": (width,),
        "cls/predictions/transform/LayerNorm/beta": (width,),
        "cls/predictions/transform/LayerNorm/gamma": (width,),
        "cls/predictions/output_bias": (config.vocab_size,),
        "cls/seq_relationship/output_weights": (2, width),
        "cls/seq_relationship/output_bias": (2,),
    }


def draw(shapes: Mapping[str, tuple[int, ...]], *, seed: int) -> dict[str, np.ndarray]:
    """Returns random float32 variables, with the magnitudes of a trained model."""
    rng = np.random.default_rng(seed)
    around = {name: 1.0 if name.endswith("gamma") else 0.0 for name in shapes}
    return {
        name: (around[name] + 0.08 * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


def forward(
    variables: Variables,
    *,
    num_attention_heads: int,
    input_ids: np.ndarray,
    input_mask: np.ndarray,
    token_type_ids: np.ndarray,
    masked_lm_positions: np.ndarray,
) -> Outputs:
    """Computes all outputs that pretraining uses.

    Args:
        variables: arrays under google-research/bert's names.
        num_attention_heads: number of heads, which the shapes do not determine.
        input_ids: token ids [B, L].
        input_mask: 1 for a token and 0 for padding [B, L].
        token_type_ids: token types [B, L].
        masked_lm_positions: positions of masked pieces [B, P].
    """
    wide = {name: np.asarray(value, np.float64) for name, value in variables.items()}
    table = wide["bert/embeddings/word_embeddings"]
    x = table[input_ids] + wide["bert/embeddings/token_type_embeddings"][token_type_ids]
    x = x + wide["bert/embeddings/position_embeddings"][: input_ids.shape[1]]
    x = _layer_norm(wide, "bert/embeddings", x)
    adder = (1.0 - input_mask[:, None, None, :]) * -10000.0
    index = 0
    while f"bert/encoder/layer_{index}/output/dense/kernel" in wide:
        x = _layer(wide, f"bert/encoder/layer_{index}", x, adder, num_attention_heads)
        index += 1
    pooled = np.tanh(_dense(wide, "bert/pooler/dense", x[:, 0]))
    masked = np.take_along_axis(x, masked_lm_positions[..., None], axis=1)
    masked = gelu_tanh(_dense(wide, "cls/predictions/transform/dense", masked))
    masked = _layer_norm(wide, "cls/predictions/transform", masked)
    return Outputs(
        hidden=x,
        pooled=pooled,
        mlm=masked @ table.T + wide["cls/predictions/output_bias"],
        next_sentence=pooled @ wide["cls/seq_relationship/output_weights"].T
        + wide["cls/seq_relationship/output_bias"],
    )


def _layer(
    variables: Variables, name: str, x: np.ndarray, adder: np.ndarray, heads: int
) -> np.ndarray:
    batch, length, width = x.shape

    def split(which: str) -> np.ndarray:
        projected = _dense(variables, f"{name}/attention/self/{which}", x)
        return projected.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)

    query, key, value = split("query"), split("key"), split("value")
    scores = query @ key.transpose(0, 1, 3, 2) / math.sqrt(width // heads) + adder
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    context = (weights @ value).transpose(0, 2, 1, 3).reshape(batch, length, width)
    attended = _dense(variables, f"{name}/attention/output/dense", context)
    x = _layer_norm(variables, f"{name}/attention/output", attended + x)
    inner = gelu_tanh(_dense(variables, f"{name}/intermediate/dense", x))
    return _layer_norm(
        variables, f"{name}/output", _dense(variables, f"{name}/output/dense", inner) + x
    )


def _dense(variables: Variables, name: str, x: np.ndarray) -> np.ndarray:
    return x @ variables[f"{name}/kernel"] + variables[f"{name}/bias"]


def _layer_norm(variables: Variables, name: str, x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt(variance + 1e-12) * variables[f"{name}/LayerNorm/gamma"]
    return scaled + variables[f"{name}/LayerNorm/beta"]


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """Returns the tanh form of GELU."""
    return x * 0.5 * (1.0 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
