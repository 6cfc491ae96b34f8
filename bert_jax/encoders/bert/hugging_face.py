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


_MLM: Final = "cls.predictions"

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
        *hf.mlm_head(f"{_MLM}.transform.dense", f"{_MLM}.transform.LayerNorm", _MLM),
        *hf.dense("next_sentence/classifier", "cls.seq_relationship"),
    ),
    tasks=hf.TASK_NAMES,
    tied=hf.tied_decoder(f"{_MLM}.decoder"),
    constants=hf.CONSTANTS,
)
