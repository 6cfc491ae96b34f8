"""The table of BERT's tensors and their names in other formats, for import and export.

The names in google-research/bert are the variable scopes of its `modeling.py`,
`run_pretraining.py`, `run_classifier.py`, `run_squad.py` and `optimization.py`.
"""

from typing import Final, Literal, NamedTuple

from bert_jax.interop.tensor_conversion import STACKED, NameRule
from bert_jax.model.section import TaskName

DECODER_WEIGHT: Final = "cls.predictions.decoder.weight"
DECODER_BIAS: Final = "cls.predictions.decoder.bias"
MLM_BIAS: Final = "cls.predictions.bias"
WORDS: Final = "embeddings.word_embeddings.weight"

# Tied tensors in Hugging Face's files: second name → first name. A file has either name, or both.
TIED: Final[dict[str, str]] = {DECODER_WEIGHT: WORDS, DECODER_BIAS: MLM_BIAS}

HF_IGNORED: Final[dict[str, str]] = {
    "*embeddings.position_ids": "the constant 0, 1, 2, …, not a parameter",
    "*embeddings.token_type_ids": "the constant 0, not a parameter",
    DECODER_WEIGHT: "the embedding table again: the decoder is tied to it",
    DECODER_BIAS: "cls.predictions.bias again",
}

HF_TASKS: Final[dict[TaskName, str]] = {
    "sequence_classification": "classifier",
    "token_classification": "classifier",
    "multiple_choice": "classifier",
    "question_answering": "qa_outputs",
}

GLOBAL_STEP: Final = "global_step"

# Suffixes of a variable's first and second moment, as `AdamWeightDecayOptimizer` names its slots.
MU: Final = "/adam_m"
NU: Final = "/adam_v"

# Scopes of the heads' variables in google-research/bert.
POOLER: Final = "bert/pooler/"
MLM: Final = "cls/predictions/"
NEXT_SENTENCE: Final = "cls/seq_relationship/"
SQUAD: Final = "cls/squad/"

# Scopes of fine-tuned heads: the variables of run_classifier.py have no scope.
GOOGLE_TASKS: Final[dict[TaskName, str]] = {
    "sequence_classification": "",
    "question_answering": SQUAD,
}
OUTPUT_WEIGHTS: Final = "output_weights"
OUTPUT_BIAS: Final = "output_bias"

# Tensors that are not parameters. Adam's moments are not listed, since they are read too.
GOOGLE_IGNORED: Final[dict[str, str]] = {GLOBAL_STEP: "the number of steps, not a parameter"}

_Kind = Literal["embedding", "norm", "dense"]
_LAYER: Final = "encoder.layer.{layer}."

# Kind, our path, and Hugging Face's name without the encoder's prefix. The name in
# google-research/bert has slashes instead of dots, and layer_0 instead of layer.0.
_TABLE: Final[tuple[tuple[_Kind, str, str], ...]] = (
    ("embedding", "encoder/embeddings/word", "embeddings.word_embeddings"),
    ("embedding", "encoder/embeddings/position", "embeddings.position_embeddings"),
    ("embedding", "encoder/embeddings/type", "embeddings.token_type_embeddings"),
    ("norm", "encoder/embeddings/norm", "embeddings.LayerNorm"),
    ("dense", STACKED + "attention/query", _LAYER + "attention.self.query"),
    ("dense", STACKED + "attention/key", _LAYER + "attention.self.key"),
    ("dense", STACKED + "attention/value", _LAYER + "attention.self.value"),
    ("dense", STACKED + "attention/output", _LAYER + "attention.output.dense"),
    ("norm", STACKED + "attention_norm", _LAYER + "attention.output.LayerNorm"),
    ("dense", STACKED + "intermediate", _LAYER + "intermediate.dense"),
    ("dense", STACKED + "output", _LAYER + "output.dense"),
    ("norm", STACKED + "output_norm", _LAYER + "output.LayerNorm"),
    ("dense", "pooler/dense", "pooler.dense"),
    ("dense", "mlm/transform", "cls.predictions.transform.dense"),
    ("norm", "mlm/norm", "cls.predictions.transform.LayerNorm"),
)


class _Suffixes(NamedTuple):
    """Suffixes that a format appends to a layer's name for its tensors."""

    embedding: str
    scale: str
    shift: str
    kernel: str
    bias: str
    transposed: bool  # whether a kernel is [outputs, inputs]


_PYTORCH: Final = _Suffixes(".weight", ".weight", ".bias", ".weight", ".bias", transposed=True)
_TENSORFLOW: Final = _Suffixes("", "/gamma", "/beta", "/kernel", "/bias", transposed=False)


def hf_names(prefix: str, task: TaskName | None) -> list[NameRule]:
    """Returns Hugging Face's names. The `prefix` of the encoder's names is ``bert.`` or empty."""
    rules: list[NameRule] = []
    for kind, ours, theirs in _TABLE:
        theirs = theirs if theirs.startswith("cls.") else prefix + theirs
        rules += _rules(kind, ours, theirs, _PYTORCH)
    rules.append(NameRule("mlm/bias", MLM_BIAS, vocabulary=True))
    rules += _rules("dense", "next_sentence/classifier", "cls.seq_relationship", _PYTORCH)
    return rules if task is None else rules + _rules("dense", "task", HF_TASKS[task], _PYTORCH)


def google_names(task: TaskName | None) -> list[NameRule]:
    """Returns google-research/bert's names, including the names for a fine-tuned head."""
    rules: list[NameRule] = []
    for kind, ours, theirs in _TABLE:
        theirs = theirs.replace(".", "/").replace("layer/{", "layer_{")
        theirs = theirs if theirs.startswith("cls/") else f"bert/{theirs}"
        rules += _rules(kind, ours, theirs, _TENSORFLOW)
    rules.append(NameRule("mlm/bias", MLM + OUTPUT_BIAS, vocabulary=True))
    rules += _output("next_sentence/classifier", NEXT_SENTENCE)
    return rules if task is None else rules + _output("task", GOOGLE_TASKS[task])


def current_name(name: str) -> str:
    """Returns a tensor's current name. Early Hugging Face files use gamma and beta."""
    stem, _, last = name.rpartition(".")
    if not stem.endswith("LayerNorm"):
        return name
    last = {"gamma": "weight", "beta": "bias"}.get(last, last)
    return f"{stem}.{last}"


def _rules(kind: _Kind, ours: str, theirs: str, of: _Suffixes) -> list[NameRule]:
    if kind == "embedding":
        is_words = ours.endswith("/word")
        return [NameRule(ours, theirs + of.embedding, matrix=True, vocabulary=is_words)]
    if kind == "norm":
        return [
            NameRule(f"{ours}/scale", theirs + of.scale),
            NameRule(f"{ours}/bias", theirs + of.shift),
        ]
    return [
        NameRule(f"{ours}/kernel", theirs + of.kernel, matrix=True, transposed=of.transposed),
        NameRule(f"{ours}/bias", theirs + of.bias),
    ]


def _output(ours: str, scope: str) -> list[NameRule]:
    # The last layer of a head in google-research/bert is a variable of shape [outputs, inputs].
    return [
        NameRule(f"{ours}/kernel", scope + OUTPUT_WEIGHTS, matrix=True, transposed=True),
        NameRule(f"{ours}/bias", scope + OUTPUT_BIAS),
    ]
