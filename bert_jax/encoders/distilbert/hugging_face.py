"""DistilBERT in Hugging Face's format."""

from typing import Any, Final

import pydantic

from bert_jax.encoders import hf_format as hf
from bert_jax.encoders.distilbert.section import DistilBertArchitecture
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


class DistilBertConfig(DistilBertArchitecture, hf.HfConfig):
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


_CLASSIFIER: Final = hf.classifier("pre_classifier", "classifier")

FORMAT: Final = hf.HfFormat(
    title="DistilBERT",
    model_types={"distilbert": "DistilBert"},
    classes={"ForMaskedLM": hf.ClassHeads(mlm=True), **hf.TASK_CLASSES},
    config=DistilBertConfig,
    prefix="distilbert.",
    encoder=(
        *hf.embedding("encoder/embeddings/word", "embeddings.word_embeddings"),
        *hf.embedding("encoder/embeddings/position", "embeddings.position_embeddings"),
        *hf.norm("encoder/embeddings/norm", "embeddings.LayerNorm"),
        *hf.dense(f"{hf.LAYERS}attention/query", f"{_LAYER}attention.q_lin"),
        *hf.dense(f"{hf.LAYERS}attention/key", f"{_LAYER}attention.k_lin"),
        *hf.dense(f"{hf.LAYERS}attention/value", f"{_LAYER}attention.v_lin"),
        *hf.dense(f"{hf.LAYERS}attention/output", f"{_LAYER}attention.out_lin"),
        *hf.norm(f"{hf.LAYERS}attention_norm", f"{_LAYER}sa_layer_norm"),
        *hf.dense(f"{hf.LAYERS}intermediate", f"{_LAYER}ffn.lin1"),
        *hf.dense(f"{hf.LAYERS}output", f"{_LAYER}ffn.lin2"),
        *hf.norm(f"{hf.LAYERS}output_norm", f"{_LAYER}output_layer_norm"),
    ),
    heads=hf.mlm_head("vocab_transform", "vocab_layer_norm", "vocab_projector"),
    tasks={
        **hf.TASK_NAMES,
        "sequence_classification": _CLASSIFIER,
        "multiple_choice": _CLASSIFIER,
    },
    tied={"vocab_projector.weight": "encoder/embeddings/word"},
    constants={"*embeddings.position_ids": "the constant 0, 1, 2, …, not a parameter"},
)
