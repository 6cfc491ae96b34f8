"""BERT in Hugging Face's format."""

from typing import Final, Literal

from bert_jax.encoders import hf_format as hf
from bert_jax.encoders.bert.section import BertArchitecture
from bert_jax.model.architecture import Activation


class BertConfig(BertArchitecture, hf.HfConfig):
    """The keys that we read from BERT's config.json."""

    architecture_type = BertArchitecture

    hidden_act: Activation = "gelu_erf"
    position_embedding_type: Literal["absolute"] = "absolute"
    add_cross_attention: Literal[False] = False


FORMAT: Final = hf.HfFormat(
    title="BERT",
    model_types={"bert": "Bert"},
    classes={
        "ForPreTraining": hf.ClassHeads(pooler=True, mlm=True, next_sentence=True),
        "ForMaskedLM": hf.ClassHeads(mlm=True),
        "LMHeadModel": hf.ClassHeads(mlm=True, causal=True),
        "ForNextSentencePrediction": hf.ClassHeads(pooler=True, next_sentence=True),
        **hf.POOLED_CLASSES,
    },
    config=BertConfig,
    prefix="bert.",
    encoder=hf.POST_NORM,
    heads=(
        *hf.dense("mlm/transform", "cls.predictions.transform.dense"),
        *hf.norm("mlm/norm", "cls.predictions.transform.LayerNorm"),
        hf.NameRule("mlm/bias", "cls.predictions.bias"),
        *hf.dense("next_sentence/classifier", "cls.seq_relationship"),
    ),
    tasks=hf.TASK_NAMES,
    tied={
        "cls.predictions.decoder.weight": "encoder/embeddings/word",
        "cls.predictions.decoder.bias": "mlm/bias",
    },
    ignored={
        **hf.CONSTANTS,
        "cls.predictions.decoder.weight": "the embedding table again: the decoder is tied to it",
        "cls.predictions.decoder.bias": "cls.predictions.bias again",
    },
)
