"""Hugging Face's config.json, to our architecture and heads and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pydantic

from bert_jax.errors import UserError, did_you_mean
from bert_jax.model.config import Activation, Architecture, HeadsSection, ProblemName, TaskName

# Our 2018 "gelu" is Hugging Face's gelu_new, the tanh form; its "gelu" is the exact one.
ACTIVATIONS: Final[dict[str, Activation]] = {
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
HF_ACTIVATIONS: Final[dict[Activation, str]] = {
    "gelu_erf": "gelu",
    "gelu_tanh": "gelu_new",
    "relu": "relu",
}

# Class → pooler, MLM, next sentence, task. Hugging Face's BertModel may come without its pooler.
CLASSES: Final[dict[str, tuple[bool, bool, bool, TaskName | None]]] = {
    "BertForPreTraining": (True, True, True, None),
    "BertForMaskedLM": (False, True, False, None),
    "BertForNextSentencePrediction": (True, False, True, None),
    "BertForSequenceClassification": (True, False, False, "sequence_classification"),
    "BertForMultipleChoice": (True, False, False, "multiple_choice"),
    "BertForTokenClassification": (False, False, False, "token_classification"),
    "BertForQuestionAnswering": (False, False, False, "question_answering"),
    "BertModel": (False, False, False, None),
}
BARE: Final = "BertModel"

# The tasks whose outputs have names.
LABELLED: Final = ("sequence_classification", "token_classification")

PROBLEMS: Final[dict[ProblemName, str]] = {
    "single_label": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
}

# Key → the only value under which the model is the one that is built here.
_FIXED: Final[dict[str, Any]] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
_SIZES: Final = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
)
_DEFAULTED: Final = (
    "max_position_embeddings",
    "type_vocab_size",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "initializer_range",
    "layer_norm_eps",
)


def read_architecture(config: Mapping[str, Any], source: Path) -> Architecture:
    """Returns the architecture that a config.json describes.

    Raises:
        UserError: another kind of model, a size missing or ill-typed, or a variant of BERT that
            computes something else.
    """
    if config.get("model_type", "bert") != "bert":
        raise UserError(f'{source}: model_type found "{config["model_type"]}", allowed: bert')
    for key, allowed in _FIXED.items():
        if (found := config.get(key, allowed)) != allowed:
            raise UserError(f"{source}: {key} found {found!r}, allowed: {allowed!r}")
    for key in _SIZES:
        if key not in config:
            near = did_you_mean(key, config)
            raise UserError(f"{source}: {key} missing, allowed: a whole number{near}")
    activation = config.get("hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        near = did_you_mean(str(activation), ACTIVATIONS)
        raise UserError(
            f'{source}: hidden_act found "{activation}", allowed: {", ".join(ACTIVATIONS)}{near}'
        )
    values = {key: config[key] for key in (*_SIZES, *_DEFAULTED) if key in config}
    try:
        found = Architecture.model_validate({**values, "hidden_act": ACTIVATIONS[activation]})
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise UserError(f"{source}: {key} found {first['input']!r} ({first['msg']})") from error
    if found.hidden_size % found.num_attention_heads:
        raise UserError(
            f"{source}: num_attention_heads found {found.num_attention_heads}, which does not "
            f"divide hidden_size = {found.hidden_size}"
        )
    return found


def read_class(config: Mapping[str, Any], source: Path) -> str:
    """Returns the class that a config.json says the checkpoint is of.

    Raises:
        UserError: a class that is not known here.
    """
    named = config.get("architectures") or [BARE]
    if not isinstance(named, list) or named[0] not in CLASSES:
        near = did_you_mean(str(named[0]) if isinstance(named, list) else str(named), CLASSES)
        raise UserError(
            f"{source}: architectures found {named}, allowed: {', '.join(CLASSES)}{near}"
        )
    return named[0]


def read_labels(config: Mapping[str, Any], source: Path) -> tuple[str, ...]:
    """Returns the names of a classifier's outputs, in their order.

    Raises:
        UserError: ids that are not 0, 1, 2, …
    """
    named = config.get("id2label")
    if named is None:
        return tuple(f"LABEL_{index}" for index in range(config.get("num_labels", 2)))
    wanted = [str(index) for index in range(len(named))]
    if not isinstance(named, Mapping) or sorted(map(str, named)) != sorted(wanted):
        raise UserError(f"{source}: id2label found {named}, allowed: names for 0, 1, 2, …")
    by_id = {str(key): str(value) for key, value in named.items()}
    return tuple(by_id[index] for index in wanted)


def read_problem(config: Mapping[str, Any], source: Path) -> ProblemName | None:
    """Returns what a sequence classifier's outputs mean, where the file says it.

    Raises:
        UserError: a problem_type that is not known.
    """
    said = config.get("problem_type")
    if said is None:
        return None
    for name, theirs in PROBLEMS.items():
        if said == theirs:
            return name
    allowed = ", ".join(PROBLEMS.values())
    raise UserError(f'{source}: problem_type found "{said}", allowed: {allowed}')


def read_task_dropout(config: Mapping[str, Any], source: Path) -> float | None:
    """Returns the dropout before a task head, where it is not the encoder's.

    Raises:
        UserError: not a rate.
    """
    rate = config.get("classifier_dropout")
    if rate is None:
        return None
    if not isinstance(rate, int | float) or isinstance(rate, bool) or not 0 <= rate < 1:
        raise UserError(f"{source}: classifier_dropout found {rate!r}, allowed: 0 to below 1")
    return float(rate)


def write_config(
    architecture: Architecture, heads: HeadsSection, *, kind: str, pad_token_id: int
) -> dict[str, Any]:
    """Returns the config.json of an exported model.

    Args:
        architecture: sizes.
        heads: for the labels.
        kind: one of `CLASSES`.
        pad_token_id: of the tokenizer.
    """
    config: dict[str, Any] = {
        "architectures": [kind],
        "model_type": "bert",
        **{key: getattr(architecture, key) for key in (*_SIZES, *_DEFAULTED)},
        "hidden_act": HF_ACTIVATIONS[architecture.hidden_act],
        "pad_token_id": pad_token_id,
        "dtype": "float32",
    }
    if heads.labels and CLASSES[kind][3] is not None:
        config["id2label"] = {str(index): label for index, label in enumerate(heads.labels)}
        config["label2id"] = {label: index for index, label in enumerate(heads.labels)}
    if heads.task_dropout is not None and CLASSES[kind][3] is not None:
        config["classifier_dropout"] = heads.task_dropout
    if heads.problem is not None and kind == "BertForSequenceClassification":
        config["problem_type"] = PROBLEMS[heads.problem]
    return config


def heads_of(kind: str, heads: HeadsSection, *, pooler: bool) -> HeadsSection:
    """Returns the part of a model's heads that a class has.

    Args:
        kind: one of `CLASSES`.
        heads: what the model has, or could have: gives labels and problem.
        pooler: whether a bare model keeps its pooler.
    """
    has_pooler, mlm, next_sentence, task = CLASSES[kind]
    return HeadsSection(
        pooler=pooler if kind == BARE else has_pooler,
        mlm=mlm,
        next_sentence=next_sentence,
        task=task,
        labels=heads.labels if task in LABELLED else (),
        problem=heads.problem if task == "sequence_classification" else None,
        task_dropout=heads.task_dropout if task is not None else None,
    )


def classes_for(heads: HeadsSection) -> list[str]:
    """Returns the classes that a model with these heads can be exported as, the fullest first."""
    fitting = []
    for kind, (pooler, mlm, next_sentence, task) in CLASSES.items():
        lacking = (
            (pooler and not heads.pooler)
            or (mlm and not heads.mlm)
            or (next_sentence and not heads.next_sentence)
            or (task is not None and task != heads.task)
        )
        if not lacking:
            fitting.append(kind)
    # A fine-tuned model is exported as what it was fine-tuned for.
    return sorted(fitting, key=lambda kind: CLASSES[kind][3] is None)
