"""BERT in Hugging Face's format."""

from typing import Final, Literal

from bert_jax.encoders.bert.section import BertArchitecture
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
from bert_jax.model.architecture import Activation


class BertConfig(BertArchitecture, HfConfig):
    """The keys that we read from BERT's config.json."""

    architecture_type = BertArchitecture

    hidden_act: Activation = "gelu_erf"
    position_embedding_type: Literal["absolute"] = "absolute"
    add_cross_attention: Literal[False] = False


FORMAT: Final = HfFormat(
    title="BERT",
    model_types={"bert": "Bert"},
    classes={
        "ForPreTraining": ClassHeads(pooler=True, mlm=True, next_sentence=True),
        "ForMaskedLM": ClassHeads(mlm=True),
        "LMHeadModel": ClassHeads(mlm=True, causal=True),
        "ForNextSentencePrediction": ClassHeads(pooler=True, next_sentence=True),
        "ForSequenceClassification": ClassHeads(pooler=True, task="sequence_classification"),
        "ForMultipleChoice": ClassHeads(pooler=True, task="multiple_choice"),
        "ForTokenClassification": ClassHeads(task="token_classification"),
        "ForQuestionAnswering": ClassHeads(task="question_answering"),
        BARE: ClassHeads(),  # the pooler is optional
    },
    config=BertConfig,
    prefix="bert.",
    encoder=POST_NORM,
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
        **CONSTANTS,
        "cls.predictions.decoder.weight": "the embedding table again: the decoder is tied to it",
        "cls.predictions.decoder.bias": "cls.predictions.bias again",
    },
)
