"""DistilBERT in Hugging Face's format."""

from typing import Any, Final

import pydantic

from bert_jax.encoders.distilbert.section import DistilBertArchitecture
from bert_jax.encoders.hf_format import (
    BARE,
    LAYERS,
    ClassHeads,
    HfConfig,
    HfFormat,
    NameRule,
    dense,
    embedding,
    norm,
)
from bert_jax.text.vocabulary import SpecialIds

_LAYER: Final = "transformer.layer.{layer}."

_KEYS: Final = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}
_CONSTANT: Final = ("type_vocab_size", "layer_norm_eps")  # settings that their file lacks


class DistilBertConfig(DistilBertArchitecture, HfConfig):
    """The keys that we read from DistilBERT's config.json.

    A file with `sinusoidal_pos_embds` has the sinusoids among its weights, so the key is not read.
    """

    model_config = pydantic.ConfigDict(alias_generator=lambda name: _KEYS.get(name, name))
    architecture_type = DistilBertArchitecture
    keys = _KEYS

    @classmethod
    def written(cls, architecture: Any, special: SpecialIds) -> dict[str, Any]:
        """Returns the keys and values, see `HfConfig`."""
        values = super().written(architecture, special)
        return {key: value for key, value in values.items() if key not in _CONSTANT}


_CLASSIFIER: Final = (*dense("classifier/dense", "pre_classifier"), *dense("task", "classifier"))

FORMAT: Final = HfFormat(
    title="DistilBERT",
    model_types={"distilbert": "DistilBert"},
    classes={
        "ForMaskedLM": ClassHeads(mlm=True),
        "ForSequenceClassification": ClassHeads(task="sequence_classification"),
        "ForMultipleChoice": ClassHeads(task="multiple_choice"),
        "ForTokenClassification": ClassHeads(task="token_classification"),
        "ForQuestionAnswering": ClassHeads(task="question_answering"),
        BARE: ClassHeads(),
    },
    config=DistilBertConfig,
    prefix="distilbert.",
    encoder=(
        *embedding("encoder/embeddings/word", "embeddings.word_embeddings"),
        *embedding("encoder/embeddings/position", "embeddings.position_embeddings"),
        *norm("encoder/embeddings/norm", "embeddings.LayerNorm"),
        *dense(f"{LAYERS}attention/query", f"{_LAYER}attention.q_lin"),
        *dense(f"{LAYERS}attention/key", f"{_LAYER}attention.k_lin"),
        *dense(f"{LAYERS}attention/value", f"{_LAYER}attention.v_lin"),
        *dense(f"{LAYERS}attention/output", f"{_LAYER}attention.out_lin"),
        *norm(f"{LAYERS}attention_norm", f"{_LAYER}sa_layer_norm"),
        *dense(f"{LAYERS}intermediate", f"{_LAYER}ffn.lin1"),
        *dense(f"{LAYERS}output", f"{_LAYER}ffn.lin2"),
        *norm(f"{LAYERS}output_norm", f"{_LAYER}output_layer_norm"),
    ),
    heads=(
        *dense("mlm/transform", "vocab_transform"),
        *norm("mlm/norm", "vocab_layer_norm"),
        NameRule("mlm/bias", "vocab_projector.bias"),
    ),
    tasks={
        "sequence_classification": _CLASSIFIER,
        "multiple_choice": _CLASSIFIER,
        "token_classification": dense("task", "classifier"),
        "question_answering": dense("task", "qa_outputs"),
    },
    tied={"vocab_projector.weight": "encoder/embeddings/word"},
    ignored={
        "*embeddings.position_ids": "the constant 0, 1, 2, …, not a parameter",
        "vocab_projector.weight": "the embedding table again: the decoder is tied to it",
    },
)
