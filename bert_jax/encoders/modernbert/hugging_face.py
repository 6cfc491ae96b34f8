"""ModernBERT in Hugging Face's format.

Source: `ModernBertConfig` and `modeling_modernbert.py` in Hugging Face transformers.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, Self

import pydantic

from bert_jax.encoders import hf_format as hf
from bert_jax.encoders.modernbert.section import ModernBertArchitecture
from bert_jax.errors import SettingError, commas
from bert_jax.section import Section
from bert_jax.text.vocabulary import SpecialIds

_LAYER: Final = "layers.{layer}."
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"

_KEYS: Final = {
    "hidden_act": "hidden_activation",
    "head_act": "classifier_activation",
    "global_every": "global_attn_every_n_layers",
    "window": "local_attention",
    "global_theta": "global_rope_theta",
    "local_theta": "local_rope_theta",
    "layer_norm_eps": "norm_eps",
    "pooling": "classifier_pooling",
}


class _Rope(Section):
    rope_type: Literal["default"] = "default"
    rope_theta: float | None = pydantic.Field(default=None, gt=0)
    partial_rotary_factor: float = pydantic.Field(default=1.0, ge=1, le=1)


class _Ropes(Section):
    full_attention: _Rope = _Rope()
    sliding_attention: _Rope = _Rope()


class ModernBertConfig(ModernBertArchitecture, hf.HfConfig):
    """The keys that we read from ModernBERT's config.json.

    transformers 5 has `layer_types` and `rope_parameters`. transformers 4 has
    `global_attn_every_n_layers`, `global_rope_theta` and `local_rope_theta`. A file may have both.
    """

    model_config = pydantic.ConfigDict(alias_generator=lambda name: _KEYS.get(name, name))
    architecture_type = ModernBertArchitecture
    keys = _KEYS
    ids: ClassVar[Mapping[str, str]] = {
        "pad_token_id": "pad",
        "cls_token_id": "cls",
        "bos_token_id": "cls",
        "sep_token_id": "sep",
        "eos_token_id": "sep",
    }

    norm_bias: Literal[False] = False
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    classifier_bias: Literal[False] = False
    decoder_bias: Literal[True] = True
    rope_scaling: None = None
    layer_types: list[Literal["full_attention", "sliding_attention"]] | None = None
    rope_parameters: _Ropes | None = None

    @pydantic.field_validator("window")
    @classmethod
    def _halved(cls, window: int) -> int:
        # In the released code, each side of the window has `local_attention // 2` tokens.
        return window // 2 * 2

    @pydantic.model_validator(mode="after")
    def _regular(self) -> Self:
        if self.layer_types is not None and self._every() is None:
            found, allowed = commas(self.layer_types), f"{_GLOBAL} in every n-th layer"
            raise SettingError.wrong("modernbert.layer_types", found, allowed, place="layer_types")
        return self

    def _every(self) -> int | None:
        """Returns n if every n-th layer is global, from the first one. None: irregular layers."""
        depth = self.num_hidden_layers
        for every in (self.global_every, *range(1, depth + 1)):
            if self.layer_types in (None, _layer_types(depth, every)):
                return every
        return None

    @property
    def architecture(self) -> ModernBertArchitecture:
        """The architecture."""
        ropes = self.rope_parameters or _Ropes()
        thetas = {
            "global_theta": ropes.full_attention.rope_theta or self.global_theta,
            "local_theta": ropes.sliding_attention.rope_theta or self.local_theta,
        }
        return super().architecture.model_copy(update={"global_every": self._every(), **thetas})

    @classmethod
    def written(cls, architecture: Any, special: SpecialIds) -> dict[str, Any]:
        """Returns the keys of both versions of transformers."""
        thetas = {_GLOBAL: architecture.global_theta, _LOCAL: architecture.local_theta}
        return super().written(architecture, special) | {
            "layer_types": _layer_types(architecture.num_hidden_layers, architecture.global_every),
            "rope_parameters": {
                name: {"rope_type": "default", "rope_theta": theta}
                for name, theta in thetas.items()
            },
        }


def _layer_types(depth: int, every: int) -> list[str]:
    return [_LOCAL if layer % every else _GLOBAL for layer in range(depth)]


FORMAT: Final = hf.HfFormat(
    title="ModernBERT",
    model_types={"modernbert": "ModernBert"},
    classes={"ForMaskedLM": hf.ClassHeads(mlm=True), **hf.TASK_CLASSES},
    config=ModernBertConfig,
    prefix="model.",
    encoder=(
        *hf.embedding("encoder/word", "embeddings.tok_embeddings"),
        *hf.norm("encoder/norm", "embeddings.norm", bias=False),
        *hf.norm("encoder/attention_norms", f"{_LAYER}attn_norm", bias=False, first_layer=1),
        *hf.dense(f"{hf.LAYERS}query", f"{_LAYER}attn.Wqkv", bias=False),
        *hf.dense(f"{hf.LAYERS}key", f"{_LAYER}attn.Wqkv", bias=False),
        *hf.dense(f"{hf.LAYERS}value", f"{_LAYER}attn.Wqkv", bias=False),
        *hf.dense(f"{hf.LAYERS}output", f"{_LAYER}attn.Wo", bias=False),
        *hf.norm(f"{hf.LAYERS}ffn_norm", f"{_LAYER}mlp_norm", bias=False),
        *hf.dense(f"{hf.LAYERS}gate", f"{_LAYER}mlp.Wi", bias=False),
        *hf.dense(f"{hf.LAYERS}up", f"{_LAYER}mlp.Wi", bias=False),
        *hf.dense(f"{hf.LAYERS}down", f"{_LAYER}mlp.Wo", bias=False),
        *hf.norm("encoder/last_norm", "final_norm", bias=False),
    ),
    heads=(
        *hf.dense("head/dense", "head.dense", bias=False),
        *hf.norm("head/norm", "head.norm", bias=False),
        hf.NameRule("mlm/bias", "decoder.bias"),
    ),
    tasks={**hf.TASK_NAMES, "question_answering": hf.dense("task", "classifier")},
    tied={"decoder.weight": "encoder/word"},
    constants={},
)
