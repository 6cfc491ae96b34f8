"""google-research/bert's names for BERT's tensors: the one table, for import and export alike.

Source: the variable scopes of google-research/bert `modeling.py`, `run_pretraining.py`,
`run_classifier.py`, `run_squad.py` and `optimization.py`.
"""

from typing import Final

from bert_jax.interop.mapping import STACKED, NameRule
from bert_jax.model.config import TaskName

GLOBAL_STEP: Final = "global_step"

# First and second moment of a variable: slots of `AdamWeightDecayOptimizer`, named after it.
MU: Final = "/adam_m"
NU: Final = "/adam_v"

# Prefixes of the heads' variables.
POOLER: Final = "bert/pooler/"
MLM: Final = "cls/predictions/"
NEXT_SENTENCE: Final = "cls/seq_relationship/"

CLASSIFIER_WEIGHTS: Final = "output_weights"
CLASSIFIER_BIAS: Final = "output_bias"
SQUAD: Final = "cls/squad/"

# Not parameters of the model. Adam's moments are not listed: they are read under this table too.
IGNORED: Final[dict[str, str]] = {GLOBAL_STEP: "the number of steps done, not a parameter"}

_LAYER: Final = "bert/encoder/layer_{layer}/"


def _dense(ours: str, theirs: str) -> tuple[NameRule, ...]:
    """A kernel is [inputs, outputs] in `tf.layers.dense`, as it is here."""
    return (
        NameRule(f"{ours}/kernel", f"{theirs}/kernel", matrix=True),
        NameRule(f"{ours}/bias", f"{theirs}/bias"),
    )


def _norm(ours: str, theirs: str) -> tuple[NameRule, ...]:
    return (
        NameRule(f"{ours}/scale", f"{theirs}/LayerNorm/gamma"),
        NameRule(f"{ours}/bias", f"{theirs}/LayerNorm/beta"),
    )


def _output(ours: str, weights: str, bias: str) -> tuple[NameRule, ...]:
    """The last layer of a head is a plain variable, [outputs, inputs]."""
    return (
        NameRule(f"{ours}/kernel", weights, matrix=True, transposed=True),
        NameRule(f"{ours}/bias", bias),
    )


TABLE: Final[tuple[NameRule, ...]] = (
    NameRule(
        "encoder/embeddings/word", "bert/embeddings/word_embeddings", matrix=True, vocabulary=True
    ),
    NameRule("encoder/embeddings/position", "bert/embeddings/position_embeddings", matrix=True),
    NameRule("encoder/embeddings/type", "bert/embeddings/token_type_embeddings", matrix=True),
    *_norm("encoder/embeddings/norm", "bert/embeddings"),
    *_dense(STACKED + "attention/query", _LAYER + "attention/self/query"),
    *_dense(STACKED + "attention/key", _LAYER + "attention/self/key"),
    *_dense(STACKED + "attention/value", _LAYER + "attention/self/value"),
    *_dense(STACKED + "attention/output", _LAYER + "attention/output/dense"),
    *_norm(STACKED + "attention_norm", _LAYER + "attention/output"),
    *_dense(STACKED + "intermediate", _LAYER + "intermediate/dense"),
    *_dense(STACKED + "output", _LAYER + "output/dense"),
    *_norm(STACKED + "output_norm", _LAYER + "output"),
    *_dense("pooler/dense", POOLER + "dense"),
    *_dense("mlm/transform", MLM + "transform/dense"),
    *_norm("mlm/norm", MLM + "transform"),
    NameRule("mlm/bias", MLM + "output_bias", vocabulary=True),
    *_output(
        "next_sentence/classifier", NEXT_SENTENCE + "output_weights", NEXT_SENTENCE + "output_bias"
    ),
)

# The fine-tuned heads of run_classifier.py and run_squad.py.
TASK_TABLES: Final[dict[TaskName, tuple[NameRule, ...]]] = {
    "sequence_classification": _output("task", CLASSIFIER_WEIGHTS, CLASSIFIER_BIAS),
    "question_answering": _output("task", SQUAD + "output_weights", SQUAD + "output_bias"),
}


def names(task: TaskName | None) -> tuple[NameRule, ...]:
    """Returns the table, with the names of a fine-tuned head where there is one."""
    return TABLE if task is None else TABLE + TASK_TABLES[task]
