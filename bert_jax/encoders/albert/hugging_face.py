"""ALBERT in Hugging Face's format."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import pydantic

from bert_jax.encoders.albert.section import AlbertArchitecture
from bert_jax.encoders.hf_format import (
    BARE,
    CONSTANTS,
    LAYERS,
    ClassHeads,
    HfConfig,
    HfFormat,
    NameRule,
    dense,
    embedding,
    norm,
)
from bert_jax.errors import SettingError
from bert_jax.text.vocabulary import SpecialIds


class AlbertConfig(AlbertArchitecture, HfConfig):
    """The keys that we read from ALBERT's config.json."""

    architecture_type = AlbertArchitecture
    keys: ClassVar[Mapping[str, str]] = {"classifier_dropout": "classifier_dropout_prob"}
    ids: ClassVar[Mapping[str, str]] = {
        "pad_token_id": "pad",
        "bos_token_id": "cls",
        "eos_token_id": "sep",
    }

    fixed: ClassVar[Mapping[str, object]] = {**HfConfig.fixed, "share": "all"}

    inner_group_num: int = 1

    @pydantic.field_validator("inner_group_num")
    @classmethod
    def _one_layer(cls, found: int) -> int:
        if found != 1:
            raise SettingError.wrong("albert.inner_groups", found, "1, one set of parameters")
        return found

    @classmethod
    def written(cls, architecture: Any, special: SpecialIds) -> dict[str, Any]:
        """Returns the keys and values, see `HfConfig`."""
        width = {"embedding_size": architecture.embedding_width, "inner_group_num": 1}
        return super().written(architecture, special) | width


_LAYER: Final = "encoder.albert_layer_groups.{layer}.albert_layers.0."

FORMAT: Final = HfFormat(
    title="ALBERT",
    model_types={"albert": "Albert"},
    classes={
        "ForPreTraining": ClassHeads(pooler=True, mlm=True, next_sentence=True),
        "ForMaskedLM": ClassHeads(mlm=True),
        "ForSequenceClassification": ClassHeads(pooler=True, task="sequence_classification"),
        "ForMultipleChoice": ClassHeads(pooler=True, task="multiple_choice"),
        "ForTokenClassification": ClassHeads(task="token_classification"),
        "ForQuestionAnswering": ClassHeads(task="question_answering"),
        BARE: ClassHeads(),  # the pooler is optional
    },
    config=AlbertConfig,
    prefix="albert.",
    encoder=(
        *embedding("encoder/embeddings/word", "embeddings.word_embeddings"),
        *embedding("encoder/embeddings/position", "embeddings.position_embeddings"),
        *embedding("encoder/embeddings/type", "embeddings.token_type_embeddings"),
        *norm("encoder/embeddings/norm", "embeddings.LayerNorm"),
        *dense("encoder/embeddings/projection", "encoder.embedding_hidden_mapping_in"),
        *dense(f"{LAYERS}attention/query", f"{_LAYER}attention.query"),
        *dense(f"{LAYERS}attention/key", f"{_LAYER}attention.key"),
        *dense(f"{LAYERS}attention/value", f"{_LAYER}attention.value"),
        *dense(f"{LAYERS}attention/output", f"{_LAYER}attention.dense"),
        *norm(f"{LAYERS}attention_norm", f"{_LAYER}attention.LayerNorm"),
        *dense(f"{LAYERS}intermediate", f"{_LAYER}ffn"),
        *dense(f"{LAYERS}output", f"{_LAYER}ffn_output"),
        *norm(f"{LAYERS}output_norm", f"{_LAYER}full_layer_layer_norm"),
        *dense("pooler/dense", "pooler"),
    ),
    heads=(
        *dense("mlm/transform", "predictions.dense"),
        *norm("mlm/norm", "predictions.LayerNorm"),
        NameRule("mlm/bias", "predictions.bias"),
        *dense("next_sentence/classifier", "sop_classifier.classifier"),
    ),
    tasks={
        "sequence_classification": dense("task", "classifier"),
        "multiple_choice": dense("task", "classifier"),
        "token_classification": dense("task", "classifier"),
        "question_answering": dense("task", "qa_outputs"),
    },
    tied={
        "predictions.decoder.weight": "encoder/embeddings/word",
        "predictions.decoder.bias": "mlm/bias",
    },
    ignored={
        **CONSTANTS,
        "predictions.decoder.weight": "the embedding table again: the decoder is tied to it",
        "predictions.decoder.bias": "predictions.bias again",
    },
)
