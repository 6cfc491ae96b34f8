"""DeBERTa in Hugging Face's format, and in the format of Microsoft's pretraining.

Source: `DebertaV2Config` and `modeling_deberta_v2.py` in Hugging Face transformers;
`DeBERTa/apps/models` in Microsoft's DeBERTa.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import pydantic

from bert_jax.encoders import hf_format as hf
from bert_jax.encoders.deberta.section import DebertaArchitecture, DebertaGeneratorArchitecture
from bert_jax.errors import SettingError
from bert_jax.text.vocabulary import SpecialIds

_LAYER: Final = "encoder.layer.{layer}."
_MLM: Final = "cls.predictions"
_KEYS: Final = {"classifier_dropout": "cls_dropout"}


def _terms(found: Any) -> Any:
    """Returns the terms of a list, or of a text: ``p2c|c2p``."""
    texts = found.lower().split("|") if isinstance(found, str) else found or ()
    return tuple(text.strip() if isinstance(text, str) else text for text in texts if text)


def _norm(found: Any) -> Any:
    """Returns whether the names in a text, such as ``layer_norm|other``, include `layer_norm`."""
    names = [name.strip() for name in found.lower().split("|")] if isinstance(found, str) else ()
    return "layer_norm" if "layer_norm" in names else "none" if names else found


class DebertaConfig(DebertaArchitecture, hf.HfConfig):
    """The keys that we read from DeBERTa's config.json."""

    model_config = pydantic.ConfigDict(alias_generator=lambda name: _KEYS.get(name, name))
    architecture_type = DebertaArchitecture
    keys = _KEYS
    fixed: ClassVar[Mapping[str, object]] = {}

    relative_attention: bool = False
    position_biased_input: bool = True
    position_buckets: int = 0
    max_relative_positions: int | None = None
    pos_att_type: Annotated[
        tuple[Literal["c2p", "p2c"], ...], pydantic.BeforeValidator(_terms)
    ] = ()
    share_att_key: bool = False
    norm_rel_ebd: Annotated[Literal["layer_norm", "none"], pydantic.BeforeValidator(_norm)] = "none"
    pooler_hidden_act: Literal["gelu"] = "gelu"
    pooler_hidden_size: int | None = None
    attention_head_size: int | None = None
    conv_kernel_size: int = 0
    legacy: bool = True

    @pydantic.field_validator("position_buckets", "max_relative_positions", mode="before")
    @classmethod
    def _without(cls, found: Any, info: pydantic.ValidationInfo) -> Any:
        # Numbers below 1 mean that there is none.
        without = 0 if info.field_name == "position_buckets" else None
        return without if isinstance(found, int) and found < 1 else found

    @pydantic.model_validator(mode="after")
    def _known_parts(self) -> Self:
        known = {
            "relative_attention": (True,),
            "conv_kernel_size": (0,),
            "pooler_hidden_size": (None, self.hidden_size),
            "attention_head_size": (None, self.head_dim),
        }
        for name, allowed in known.items():
            if (found := getattr(self, name)) not in allowed:
                raise SettingError.wrong("deberta.part", found, allowed[-1], place=name)
        return self

    @property
    def architecture(self) -> DebertaArchitecture:
        """The architecture."""
        positions = "learned" if self.position_biased_input else "none"
        return super().architecture.model_copy(update={"position_embedding": positions})

    @property
    def generator(self) -> DebertaGeneratorArchitecture:
        """The architecture of a generator: its decoder adds positions if its embeddings do not."""
        decodes = not self.position_biased_input
        return DebertaGeneratorArchitecture(
            **self.architecture.model_dump(), enhanced_mask_decoder=decodes
        )

    @classmethod
    def written(cls, architecture: Any, special: SpecialIds) -> dict[str, Any]:
        """Returns the keys and values, see `HfConfig`."""
        settings = super().written(architecture, special)
        if not architecture.projects_embeddings:
            del settings["embedding_size"]
        return settings | {
            "relative_attention": True,
            "position_biased_input": settings.pop("position_embedding") == "learned",
            "position_buckets": architecture.position_buckets or -1,
            "max_relative_positions": architecture.max_relative_positions or -1,
            "pooler_hidden_act": "gelu",
            "pooler_hidden_size": architecture.hidden_size,
            "legacy": True,
        }


FORMAT: Final = hf.HfFormat(
    title="DeBERTa",
    model_types={"deberta-v2": "DebertaV2"},
    classes={"ForMaskedLM": hf.ClassHeads(mlm=True), **hf.POOLED_CLASSES},
    config=DebertaConfig,
    prefix="deberta.",
    encoder=(
        *hf.embedding("encoder/embeddings/word", "embeddings.word_embeddings"),
        *hf.embedding("encoder/embeddings/position", "embeddings.position_embeddings"),
        *hf.embedding("encoder/embeddings/type", "embeddings.token_type_embeddings"),
        *hf.dense("encoder/embeddings/projection", "embeddings.embed_proj", bias=False),
        *hf.norm("encoder/embeddings/norm", "embeddings.LayerNorm"),
        *hf.embedding("encoder/relative", "encoder.rel_embeddings"),
        *hf.norm("encoder/relative_norm", "encoder.LayerNorm"),
        *hf.dense(f"{hf.LAYERS}attention/query", f"{_LAYER}attention.self.query_proj"),
        *hf.dense(f"{hf.LAYERS}attention/key", f"{_LAYER}attention.self.key_proj"),
        *hf.dense(f"{hf.LAYERS}attention/value", f"{_LAYER}attention.self.value_proj"),
        *hf.dense(f"{hf.LAYERS}attention/position_key", f"{_LAYER}attention.self.pos_key_proj"),
        *hf.dense(f"{hf.LAYERS}attention/position_query", f"{_LAYER}attention.self.pos_query_proj"),
        *hf.dense(f"{hf.LAYERS}attention/output", f"{_LAYER}attention.output.dense"),
        *hf.norm(f"{hf.LAYERS}attention_norm", f"{_LAYER}attention.output.LayerNorm"),
        *hf.dense(f"{hf.LAYERS}intermediate", f"{_LAYER}intermediate.dense"),
        *hf.dense(f"{hf.LAYERS}output", f"{_LAYER}output.dense"),
        *hf.norm(f"{hf.LAYERS}output_norm", f"{_LAYER}output.LayerNorm"),
    ),
    heads=(
        *hf.dense("pooler/dense", "pooler.dense"),
        *hf.mlm_head(f"{_MLM}.transform.dense", f"{_MLM}.transform.LayerNorm", _MLM),
        *hf.norm("replaced_tokens/norm", "mask_predictions.LayerNorm"),
        *hf.dense("replaced_tokens/transform", "mask_predictions.dense"),
        *hf.dense("replaced_tokens/classifier", "mask_predictions.classifier"),
    ),
    tasks=hf.TASK_NAMES,
    tied=hf.tied_decoder(f"{_MLM}.decoder"),
    # Names of Microsoft's pretraining, and of `legacy: false`.
    renamed={
        "lm_predictions.lm_head.bias": f"{_MLM}.bias",
        "lm_predictions.lm_head.": f"{_MLM}.transform.",
    },
    constants={
        **hf.CONSTANTS,
        "*embeddings.position_embeddings.weight": "not used: the embeddings have no positions",
    },
)
