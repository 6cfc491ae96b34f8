"""Hugging Face's names for BERT's tensors: the one table, for import and export alike."""

from typing import Final

from bert_jax.interop.mapping import STACKED, NameRule
from bert_jax.model.config import TaskName

# PyTorch keeps a linear map's matrix as [outputs, inputs].
TASK_NAMES: Final[dict[TaskName, str]] = {
    "sequence_classification": "classifier",
    "token_classification": "classifier",
    "multiple_choice": "classifier",
    "question_answering": "qa_outputs",
}

DECODER_WEIGHT: Final = "cls.predictions.decoder.weight"
DECODER_BIAS: Final = "cls.predictions.decoder.bias"
MLM_BIAS: Final = "cls.predictions.bias"
WORDS: Final = "embeddings.word_embeddings.weight"

# Second names of tied tensors. A file may hold both names or either.
TIED: Final[dict[str, str]] = {DECODER_WEIGHT: WORDS, DECODER_BIAS: MLM_BIAS}

IGNORED: Final[dict[str, str]] = {
    "*embeddings.position_ids": "the constant 0, 1, 2, … and no parameter",
    "*embeddings.token_type_ids": "the constant 0 and no parameter",
    DECODER_WEIGHT: "the embedding table again: the decoder is tied to it",
    DECODER_BIAS: "cls.predictions.bias again",
}


def names(prefix: str, task: TaskName | None) -> list[NameRule]:
    """Returns the table; the encoder's prefix is ``bert.``, or nothing in a ``BertModel``."""
    layer = prefix + "encoder.layer.{layer}."
    embeddings = prefix + "embeddings."
    rules = [
        NameRule("encoder/embeddings/word", prefix + WORDS, matrix=True, vocabulary=True),
        NameRule(
            "encoder/embeddings/position", embeddings + "position_embeddings.weight", matrix=True
        ),
        NameRule(
            "encoder/embeddings/type", embeddings + "token_type_embeddings.weight", matrix=True
        ),
        *_norm("encoder/embeddings/norm", embeddings + "LayerNorm"),
        *_dense(STACKED + "attention/query", layer + "attention.self.query"),
        *_dense(STACKED + "attention/key", layer + "attention.self.key"),
        *_dense(STACKED + "attention/value", layer + "attention.self.value"),
        *_dense(STACKED + "attention/output", layer + "attention.output.dense"),
        *_norm(STACKED + "attention_norm", layer + "attention.output.LayerNorm"),
        *_dense(STACKED + "intermediate", layer + "intermediate.dense"),
        *_dense(STACKED + "output", layer + "output.dense"),
        *_norm(STACKED + "output_norm", layer + "output.LayerNorm"),
        *_dense("pooler/dense", prefix + "pooler.dense"),
        *_dense("mlm/transform", "cls.predictions.transform.dense"),
        *_norm("mlm/norm", "cls.predictions.transform.LayerNorm"),
        NameRule("mlm/bias", MLM_BIAS, vocabulary=True),
        *_dense("next_sentence/classifier", "cls.seq_relationship"),
    ]
    if task is not None:
        rules += _dense("task", TASK_NAMES[task])
    return rules


def current_name(name: str) -> str:
    """Returns today's name of a tensor: the first exports say gamma and beta."""
    stem, _, last = name.rpartition(".")
    if not stem.endswith("LayerNorm"):
        return name
    last = {"gamma": "weight", "beta": "bias"}.get(last, last)
    return f"{stem}.{last}"


def _dense(ours: str, theirs: str) -> list[NameRule]:
    return [
        NameRule(f"{ours}/kernel", f"{theirs}.weight", matrix=True, transposed=True),
        NameRule(f"{ours}/bias", f"{theirs}.bias"),
    ]


def _norm(ours: str, theirs: str) -> list[NameRule]:
    return [
        NameRule(f"{ours}/scale", f"{theirs}.weight"),
        NameRule(f"{ours}/bias", f"{theirs}.bias"),
    ]
