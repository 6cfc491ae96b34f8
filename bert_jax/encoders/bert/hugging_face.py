"""BERT in Hugging Face's format."""

from typing import Final, Literal

from bert_jax.encoders.bert.section import BertArchitecture
from bert_jax.encoders.hf_format import (
    BARE,
    ClassHeads,
    HfConfig,
    HfFormat,
    NameRule,
    dense,
    embedding,
    norm,
)
from bert_jax.model.architecture import Activation

_LAYERS: Final = "encoder/layers/"
_LAYER: Final = "encoder.layer.{layer}."


class BertConfig(BertArchitecture, HfConfig):
    """The keys that we read from BERT's config.json."""

    architecture_type = BertArchitecture

    hidden_act: Activation = "gelu_erf"
    position_embedding_type: Literal["absolute"] = "absolute"
    is_decoder: Literal[False] = False
    add_cross_attention: Literal[False] = False


FORMAT: Final = HfFormat(
    title="BERT",
    model_types={"bert": "Bert"},
    classes={
        "ForPreTraining": ClassHeads(pooler=True, mlm=True, next_sentence=True),
        "ForMaskedLM": ClassHeads(mlm=True),
        "ForNextSentencePrediction": ClassHeads(pooler=True, next_sentence=True),
        "ForSequenceClassification": ClassHeads(pooler=True, task="sequence_classification"),
        "ForMultipleChoice": ClassHeads(pooler=True, task="multiple_choice"),
        "ForTokenClassification": ClassHeads(task="token_classification"),
        "ForQuestionAnswering": ClassHeads(task="question_answering"),
        BARE: ClassHeads(),  # the pooler is optional
    },
    config=BertConfig,
    prefix="bert.",
    encoder=(
        *embedding("encoder/embeddings/word", "embeddings.word_embeddings"),
        *embedding("encoder/embeddings/position", "embeddings.position_embeddings"),
        *embedding("encoder/embeddings/type", "embeddings.token_type_embeddings"),
        *norm("encoder/embeddings/norm", "embeddings.LayerNorm"),
        *dense(f"{_LAYERS}attention/query", f"{_LAYER}attention.self.query"),
        *dense(f"{_LAYERS}attention/key", f"{_LAYER}attention.self.key"),
        *dense(f"{_LAYERS}attention/value", f"{_LAYER}attention.self.value"),
        *dense(f"{_LAYERS}attention/output", f"{_LAYER}attention.output.dense"),
        *norm(f"{_LAYERS}attention_norm", f"{_LAYER}attention.output.LayerNorm"),
        *dense(f"{_LAYERS}intermediate", f"{_LAYER}intermediate.dense"),
        *dense(f"{_LAYERS}output", f"{_LAYER}output.dense"),
        *norm(f"{_LAYERS}output_norm", f"{_LAYER}output.LayerNorm"),
        *dense("pooler/dense", "pooler.dense"),
    ),
    heads=(
        *dense("mlm/transform", "cls.predictions.transform.dense"),
        *norm("mlm/norm", "cls.predictions.transform.LayerNorm"),
        NameRule("mlm/bias", "cls.predictions.bias"),
        *dense("next_sentence/classifier", "cls.seq_relationship"),
    ),
    tasks={
        "sequence_classification": dense("task", "classifier"),
        "multiple_choice": dense("task", "classifier"),
        "token_classification": dense("task", "classifier"),
        "question_answering": dense("task", "qa_outputs"),
    },
    tied={
        "cls.predictions.decoder.weight": "encoder/embeddings/word",
        "cls.predictions.decoder.bias": "mlm/bias",
    },
    ignored={
        "*embeddings.position_ids": "the constant 0, 1, 2, …, not a parameter",
        "*embeddings.token_type_ids": "the constant 0, not a parameter",
        "cls.predictions.decoder.weight": "the embedding table again: the decoder is tied to it",
        "cls.predictions.decoder.bias": "cls.predictions.bias again",
    },
)
