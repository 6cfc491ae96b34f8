"""Translates between Hugging Face's config.json and our architecture and heads."""

from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import pydantic
from etils import epath

from bert_jax.encoders.bert.section import BertArchitecture
from bert_jax.errors import SettingError, UserError, did_you_mean
from bert_jax.files.read import read_json_object
from bert_jax.model.architecture import Activation
from bert_jax.model.section import HeadsSection, ProblemName, TaskName
from bert_jax.validation import validate

# Hugging Face's "gelu" is the exact form (erf). Its "gelu_new" is the tanh form, which
# google-research/bert calls "gelu". An export writes the first name listed for its activation.
ACTIVATIONS: Final[dict[str, Activation]] = {
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}

ClassName = Literal[
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
    "BertForMultipleChoice",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
    "BertModel",
]


class ClassHeads(NamedTuple):
    """The heads of a model class in Hugging Face transformers."""

    pooler: bool = False
    mlm: bool = False
    next_sentence: bool = False
    task: TaskName | None = None


BARE: Final = "BertModel"
CLASSES: Final[dict[ClassName, ClassHeads]] = {
    "BertForPreTraining": ClassHeads(pooler=True, mlm=True, next_sentence=True),
    "BertForMaskedLM": ClassHeads(mlm=True),
    "BertForNextSentencePrediction": ClassHeads(pooler=True, next_sentence=True),
    "BertForSequenceClassification": ClassHeads(pooler=True, task="sequence_classification"),
    "BertForMultipleChoice": ClassHeads(pooler=True, task="multiple_choice"),
    "BertForTokenClassification": ClassHeads(task="token_classification"),
    "BertForQuestionAnswering": ClassHeads(task="question_answering"),
    BARE: ClassHeads(),  # the pooler is optional
}

LABELLED: Final = ("sequence_classification", "token_classification")  # have named outputs

ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]
PROBLEMS: Final[dict[ProblemType, ProblemName]] = {
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}


class HfConfig(BertArchitecture):
    """The keys that we read from a config.json. The defaults equal Hugging Face's.

    A key with a literal type allows only the value that BERT has.
    """

    model_config = pydantic.ConfigDict(extra="ignore")

    model_type: Literal["bert"] = "bert"
    position_embedding_type: Literal["absolute"] = "absolute"
    is_decoder: Literal[False] = False
    add_cross_attention: Literal[False] = False
    tie_word_embeddings: Literal[True] = True
    architectures: list[ClassName] | None = None
    id2label: dict[str, str | int] | None = None
    num_labels: int = pydantic.Field(default=2, ge=1)
    problem_type: ProblemType | None = None
    classifier_dropout: float | None = pydantic.Field(default=None, ge=0, lt=1)

    @pydantic.field_validator("id2label")
    @classmethod
    def _numbered(cls, named: dict[str, str | int] | None) -> dict[str, str | int] | None:
        if named is not None and named.keys() != {str(index) for index in range(len(named))}:
            raise SettingError(
                "import.label_numbers",
                "found labels for {found}, allowed: labels for 0, 1, 2, …",
                found=list(named),
            )
        return named

    @property
    def architecture(self) -> BertArchitecture:
        """Only the keys of the architecture."""
        return BertArchitecture(**self.model_dump(include=set(BertArchitecture.model_fields)))

    @property
    def kind(self) -> ClassName:
        """Name of the checkpoint's class in Hugging Face transformers."""
        return self.architectures[0] if self.architectures else BARE

    @property
    def problem(self) -> ProblemName | None:
        """Problem of a sequence classifier, or None if the file does not name it."""
        return None if self.problem_type is None else PROBLEMS[self.problem_type]

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of a classifier's outputs, by index."""
        if self.id2label is None:
            return tuple(f"LABEL_{index}" for index in range(self.num_labels))
        return tuple(str(self.id2label[str(index)]) for index in range(len(self.id2label)))


def read_config(path: Path) -> HfConfig:
    """Reads a config.json.

    Raises UserError if the file is not JSON, a size is wrong or missing, or the model is not BERT.
    """
    values = read_json_object(epath.Path(path))
    activation = str(values.get("hidden_act", "gelu"))
    if activation not in ACTIVATIONS:
        raise UserError(
            "import.activation",
            'found "{found}", allowed: {allowed}{hint}',
            place=f"{path}: hidden_act",
            found=f"{activation:.60}",
            allowed=list(ACTIVATIONS),
            hint=did_you_mean(activation, ACTIVATIONS),
        )
    values["hidden_act"] = ACTIVATIONS[activation]
    return validate(HfConfig, values, source=str(path))


def write_config(
    architecture: BertArchitecture, heads: HeadsSection, *, kind: ClassName, pad_token_id: int
) -> dict[str, Any]:
    """Returns the config.json of an exported model."""
    config: dict[str, Any] = {
        "architectures": [kind],
        "model_type": "bert",
        **architecture.model_dump(exclude={"hidden_act"}),
        "hidden_act": next(
            name for name, ours in ACTIVATIONS.items() if ours == architecture.hidden_act
        ),
        "pad_token_id": pad_token_id,
        "dtype": "float32",
    }
    if heads.labels:
        config["id2label"] = {str(index): label for index, label in enumerate(heads.labels)}
        config["label2id"] = {label: index for index, label in enumerate(heads.labels)}
    if heads.task_dropout is not None:
        config["classifier_dropout"] = heads.task_dropout
    if heads.problem is not None:
        config["problem_type"] = next(
            name for name, ours in PROBLEMS.items() if ours == heads.problem
        )
    return config


def heads_of(kind: ClassName, heads: HeadsSection) -> HeadsSection:
    """Returns those heads of the model that the class has. `BertModel` keeps the model's pooler."""
    wanted = CLASSES[kind]
    return HeadsSection(
        pooler=heads.pooler if kind == BARE else wanted.pooler,
        mlm=wanted.mlm,
        next_sentence=wanted.next_sentence,
        task=wanted.task,
        labels=heads.labels if wanted.task in LABELLED else (),
        problem=heads.problem if wanted.task == "sequence_classification" else None,
        task_dropout=heads.task_dropout if wanted.task is not None else None,
    )


def classes_for(heads: HeadsSection) -> list[ClassName]:
    """Returns the classes that a model can be exported as. The default is first."""
    fitting: list[ClassName] = [
        kind
        for kind, wanted in CLASSES.items()
        if heads.pooler >= wanted.pooler
        and heads.mlm >= wanted.mlm
        and heads.next_sentence >= wanted.next_sentence
        and wanted.task in (None, heads.task)
    ]
    # By default, a fine-tuned model is exported as the class of its task.
    return sorted(fitting, key=lambda kind: CLASSES[kind].task is None)
