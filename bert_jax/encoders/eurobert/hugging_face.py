"""EuroBERT in Hugging Face's format.

Source: `EuroBertConfig` and `modeling_eurobert.py` in Hugging Face transformers 5.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, Self

import pydantic

from bert_jax.encoders import hf_format as hf
from bert_jax.encoders.eurobert.section import EuroBertArchitecture
from bert_jax.errors import SettingError
from bert_jax.section import Section
from bert_jax.text.vocabulary import SpecialIds

_LAYER: Final = "layers.{layer}."
_KEYS: Final = {
    "layer_norm_eps": "rms_norm_eps",
    "pooling": "classifier_pooling",
    "columns": "head_dim",
}


class _Rope(Section):
    rope_type: Literal["default"] = "default"
    rope_theta: float | None = pydantic.Field(default=None, gt=0)


class EuroBertConfig(EuroBertArchitecture, hf.HfConfig):
    """The keys that we read from EuroBERT's config.json.

    transformers 5 has `rope_parameters`, and the code of the released models, for transformers 4,
    has `rope_theta`. A file may have both.
    """

    model_config = pydantic.ConfigDict(alias_generator=lambda name: _KEYS.get(name, name))
    architecture_type = EuroBertArchitecture
    keys = _KEYS
    ids: ClassVar[Mapping[str, str]] = {
        "pad_token_id": "pad",
        "bos_token_id": "cls",
        "eos_token_id": "sep",
        "mask_token_id": "mask",
    }
    added = frozenset({"embedding_dropout", "mlp_dropout"})

    rope_theta: float = pydantic.Field(default=10_000.0, gt=0)
    rope_parameters: _Rope | None = None
    rope_scaling: None = None
    columns: int | None = None
    tie_word_embeddings: bool = False
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False

    @pydantic.model_validator(mode="after")
    def _released(self) -> Self:
        if self.tie_word_embeddings:
            allowed = "False: the decoder has a matrix of its own"
            place = "tie_word_embeddings"
            raise SettingError.wrong("eurobert.tied_decoder", True, allowed, place=place)
        if self.columns not in (None, self.head_dim):
            allowed = f"{self.head_dim}, the hidden size divided by the heads"
            raise SettingError.wrong("eurobert.head_dim", self.columns, allowed, place="head_dim")
        return self

    @property
    def architecture(self) -> EuroBertArchitecture:
        """The architecture."""
        found = super().architecture
        theta = None if self.rope_parameters is None else self.rope_parameters.rope_theta
        return found if theta is None else found.model_copy(update={"rope_theta": theta})

    @classmethod
    def written(cls, architecture: Any, special: SpecialIds) -> dict[str, Any]:
        """Returns the keys of both versions of transformers."""
        rope = {"rope_type": "default", "rope_theta": architecture.rope_theta}
        return super().written(architecture, special) | {
            "num_key_value_heads": architecture.key_heads,
            "rope_parameters": rope,
            "tie_word_embeddings": False,
        }


FORMAT: Final = hf.HfFormat(
    title="EuroBERT",
    model_types={"eurobert": "EuroBert"},
    classes={
        "ForMaskedLM": hf.ClassHeads(mlm=True),
        "ForSequenceClassification": hf.ClassHeads(task="sequence_classification"),
        "ForTokenClassification": hf.ClassHeads(task="token_classification"),
        hf.BARE: hf.ClassHeads(),
    },
    config=EuroBertConfig,
    prefix="model.",
    encoder=(
        *hf.embedding("encoder/word", "embed_tokens"),
        *hf.norm("encoder/attention_norms", f"{_LAYER}input_layernorm", bias=False),
        *hf.dense(f"{hf.LAYERS}query", f"{_LAYER}self_attn.q_proj", bias=False),
        *hf.dense(f"{hf.LAYERS}key", f"{_LAYER}self_attn.k_proj", bias=False),
        *hf.dense(f"{hf.LAYERS}value", f"{_LAYER}self_attn.v_proj", bias=False),
        *hf.dense(f"{hf.LAYERS}output", f"{_LAYER}self_attn.o_proj", bias=False),
        *hf.norm(f"{hf.LAYERS}ffn_norm", f"{_LAYER}post_attention_layernorm", bias=False),
        *hf.dense(f"{hf.LAYERS}gate", f"{_LAYER}mlp.gate_proj", bias=False),
        *hf.dense(f"{hf.LAYERS}up", f"{_LAYER}mlp.up_proj", bias=False),
        *hf.dense(f"{hf.LAYERS}down", f"{_LAYER}mlp.down_proj", bias=False),
        *hf.norm("encoder/last_norm", "norm", bias=False),
    ),
    heads=hf.embedding("mlm/word", "lm_head"),
    tasks={
        "sequence_classification": hf.classifier("dense", "classifier"),
        "token_classification": hf.dense("task", "classifier"),
    },
    tied={},
    constants={"*rotary_emb.inv_freq": "a constant, not a parameter"},
)
