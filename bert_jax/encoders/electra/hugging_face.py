"""ELECTRA in Hugging Face's format."""

from typing import Any, Final, Literal

import pydantic

from bert_jax.encoders.electra.section import ElectraArchitecture
from bert_jax.encoders.hf_format import (
    BARE,
    CONSTANTS,
    POST_NORM,
    ClassHeads,
    HfConfig,
    HfFormat,
    NameRule,
    dense,
    norm,
)
from bert_jax.text.vocabulary import SpecialIds


class ElectraConfig(ElectraArchitecture, HfConfig):
    """The keys that we read from ELECTRA's config.json."""

    architecture_type = ElectraArchitecture

    embedding_size: int | None = pydantic.Field(default=128, ge=1, le=1 << 16)
    position_embedding_type: Literal["absolute"] = "absolute"
    add_cross_attention: Literal[False] = False
    summary_type: Literal["first"] = "first"
    summary_use_proj: Literal[True] = True
    summary_activation: Literal["gelu"] = "gelu"

    @classmethod
    def written(cls, architecture: Any, special: SpecialIds) -> dict[str, Any]:
        """Returns the keys and values, see `HfConfig`."""
        width = {"embedding_size": architecture.embedding_width}
        return super().written(architecture, special) | width


FORMAT: Final = HfFormat(
    title="ELECTRA",
    model_types={"electra": "Electra"},
    classes={
        "ForPreTraining": ClassHeads(replaced_tokens=True),
        "ForMaskedLM": ClassHeads(mlm=True),  # the generator's class
        "ForSequenceClassification": ClassHeads(task="sequence_classification"),
        "ForMultipleChoice": ClassHeads(task="multiple_choice"),
        "ForTokenClassification": ClassHeads(task="token_classification"),
        "ForQuestionAnswering": ClassHeads(task="question_answering"),
        BARE: ClassHeads(),
    },
    config=ElectraConfig,
    prefix="electra.",
    encoder=(*POST_NORM, *dense("encoder/embeddings/projection", "embeddings_project")),
    heads=(
        *dense("mlm/transform", "generator_predictions.dense"),
        *norm("mlm/norm", "generator_predictions.LayerNorm"),
        NameRule("mlm/bias", "generator_lm_head.bias"),
        *dense("replaced_tokens/transform", "discriminator_predictions.dense"),
        *dense("replaced_tokens/classifier", "discriminator_predictions.dense_prediction"),
    ),
    tasks={
        "sequence_classification": (
            *dense("classifier/dense", "classifier.dense"),
            *dense("task", "classifier.out_proj"),
        ),
        "multiple_choice": (
            *dense("classifier/dense", "sequence_summary.summary"),
            *dense("task", "classifier"),
        ),
        "token_classification": dense("task", "classifier"),
        "question_answering": dense("task", "qa_outputs"),
    },
    tied={"generator_lm_head.weight": "encoder/embeddings/word"},
    ignored={
        **CONSTANTS,
        "generator_lm_head.weight": "the embedding table again: the decoder is tied to it",
    },
)
