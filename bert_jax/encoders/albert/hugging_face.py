"""ALBERT in Hugging Face's format."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import pydantic

from bert_jax.encoders import hf_format as hf
from bert_jax.encoders.albert.section import AlbertArchitecture
from bert_jax.errors import SettingError
from bert_jax.text.vocabulary import SpecialIds


class AlbertConfig(AlbertArchitecture, hf.HfConfig):
    """The keys that we read from ALBERT's config.json."""

    architecture_type = AlbertArchitecture
    keys: ClassVar[Mapping[str, str]] = {"classifier_dropout": "classifier_dropout_prob"}
    ids: ClassVar[Mapping[str, str]] = {
        "pad_token_id": "pad",
        "bos_token_id": "cls",
        "eos_token_id": "sep",
    }

    fixed: ClassVar[Mapping[str, object]] = {**hf.HfConfig.fixed, "share": "all"}

    inner_group_num: int = 1

    @pydantic.field_validator("inner_group_num")
    @classmethod
    def _one_layer(cls, found: int) -> int:
        if found != 1:
            raise SettingError.wrong(
                "albert.inner_groups", found, "1, because a group has one set of parameters"
            )
        return found

    @classmethod
    def written(cls, architecture: Any, special: SpecialIds) -> dict[str, Any]:
        """Returns the keys and values, see `HfConfig`."""
        width = {"embedding_size": architecture.embedding_width, "inner_group_num": 1}
        return super().written(architecture, special) | width


_LAYER: Final = "encoder.albert_layer_groups.{layer}.albert_layers.0."

FORMAT: Final = hf.HfFormat(
    title="ALBERT",
    model_types={"albert": "Albert"},
    classes={
        "ForPreTraining": hf.ClassHeads(pooler=True, mlm=True, next_sentence=True),
        "ForMaskedLM": hf.ClassHeads(mlm=True),
        **hf.POOLED_CLASSES,
    },
    config=AlbertConfig,
    prefix="albert.",
    encoder=(
        *hf.embedding("encoder/embeddings/word", "embeddings.word_embeddings"),
        *hf.embedding("encoder/embeddings/position", "embeddings.position_embeddings"),
        *hf.embedding("encoder/embeddings/type", "embeddings.token_type_embeddings"),
        *hf.norm("encoder/embeddings/norm", "embeddings.LayerNorm"),
        *hf.dense("encoder/embeddings/projection", "encoder.embedding_hidden_mapping_in"),
        *hf.dense(f"{hf.LAYERS}attention/query", f"{_LAYER}attention.query"),
        *hf.dense(f"{hf.LAYERS}attention/key", f"{_LAYER}attention.key"),
        *hf.dense(f"{hf.LAYERS}attention/value", f"{_LAYER}attention.value"),
        *hf.dense(f"{hf.LAYERS}attention/output", f"{_LAYER}attention.dense"),
        *hf.norm(f"{hf.LAYERS}attention_norm", f"{_LAYER}attention.LayerNorm"),
        *hf.dense(f"{hf.LAYERS}intermediate", f"{_LAYER}ffn"),
        *hf.dense(f"{hf.LAYERS}output", f"{_LAYER}ffn_output"),
        *hf.norm(f"{hf.LAYERS}output_norm", f"{_LAYER}full_layer_layer_norm"),
        *hf.dense("pooler/dense", "pooler"),
    ),
    heads=(
        *hf.mlm_head("predictions.dense", "predictions.LayerNorm", "predictions"),
        *hf.dense("next_sentence/classifier", "sop_classifier.classifier"),
    ),
    tasks=hf.TASK_NAMES,
    tied=hf.tied_decoder("predictions.decoder"),
    constants=hf.CONSTANTS,
)
