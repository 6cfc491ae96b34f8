"""The description of an encoder's files in Hugging Face's format. Needs no JAX.

Each encoder has a `HfFormat` in its `hugging_face.py`. `bert_jax.interop` reads and writes the
files of every encoder with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
import pydantic

from bert_jax.errors import SettingError, commas
from bert_jax.model.architecture import Activation, EncoderArchitecture
from bert_jax.model.section import HeadsSection, ProblemName, TaskName
from bert_jax.section import Section
from bert_jax.text.vocabulary import SpecialIds

# Hugging Face's "gelu" is the exact form (erf). Its "gelu_new" is the tanh form, which
# google-research/bert calls "gelu". An export writes the first name listed for its activation.
ACTIVATIONS: Final[dict[str, Activation]] = {
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}

_ACTIVATIONS_OF_US: Final = ("hidden_act", "head_act")  # settings of our architectures

BARE: Final = "Model"
"""End of the name of every encoder's class without heads: ``BertModel``."""

LABELLED: Final = ("sequence_classification", "token_classification")  # have named outputs

ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]
PROBLEMS: Final[dict[ProblemType, ProblemName]] = {
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}


# Keys of config.json that no result depends on, with the types that transformers writes.
_ID: Final = ((int, list), "a number or a list")
_UNREAD: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    **dict.fromkeys([f"{name}_token_id" for name in ("pad", "bos", "eos", "cls", "sep")], _ID),
    "mask_token_id": _ID,
    **dict.fromkeys(("use_cache", "is_encoder_decoder"), ((bool,), "true or false")),
    **dict.fromkeys(("dtype", "torch_dtype", "transformers_version"), ((str,), "a string")),
    "label2id": ((dict,), "a JSON object"),
}


class NameRule(NamedTuple):
    """How one of our tensors is named and stored in another format.

    ``NameRule("pooler/dense/kernel", "pooler.dense.weight", matrix=True, transposed=True)``

    Consecutive rules with the same name in the other format describe one tensor: it contains our
    tensors one after the other along its first axis.
    """

    ours: str  # path in our nested dict
    theirs: str  # name in the other format, with {layer} if our tensor is stacked
    matrix: bool = False  # whether their tensor is a matrix; otherwise it is a vector
    transposed: bool = False  # whether their matrix is [outputs, inputs]
    first_layer: int = 0  # their number of the first layer in our stacked tensor
    # Order of the rows of their tensor: the place of each of our rows in it. None: the same order.
    order: Callable[[Any], np.ndarray] | None = None  # from the architecture


Rules = tuple[NameRule, ...]


def embedding(ours: str, theirs: str) -> Rules:
    """Returns the rule of an embedding table in PyTorch."""
    return (NameRule(ours, f"{theirs}.weight", matrix=True),)


def norm(ours: str, theirs: str, *, bias: bool = True, first_layer: int = 0) -> Rules:
    """Returns the rules of a LayerNorm in PyTorch."""
    scale = NameRule(f"{ours}/scale", f"{theirs}.weight", first_layer=first_layer)
    return (scale, NameRule(f"{ours}/bias", f"{theirs}.bias")) if bias else (scale,)


def dense(ours: str, theirs: str, *, bias: bool = True) -> Rules:
    """Returns the rules of a dense layer in PyTorch."""
    kernel = NameRule(f"{ours}/kernel", f"{theirs}.weight", matrix=True, transposed=True)
    return (kernel, NameRule(f"{ours}/bias", f"{theirs}.bias")) if bias else (kernel,)


def mlm_head(transform: str, normed: str, bias: str) -> Rules:
    """Returns the rules of the MLM head of encoders that share BERT's layers."""
    return (
        *dense("mlm/transform", transform),
        *norm("mlm/norm", normed),
        NameRule("mlm/bias", f"{bias}.bias"),
    )


def classifier(inner: str, outer: str) -> Rules:
    """Returns the rules of a task's head with a dense layer before it."""
    return (*dense("classifier/dense", inner), *dense("task", outer))


def tied_decoder(theirs: str) -> dict[str, str]:
    """Returns the entries of `HfFormat.tied` for the MLM head's decoder with a bias."""
    return {f"{theirs}.weight": "encoder/embeddings/word", f"{theirs}.bias": "mlm/bias"}


CONSTANTS: Final = {
    "*embeddings.position_ids": "the constant 0, 1, 2, …, not a parameter",
    "*embeddings.token_type_ids": "the constant 0, not a parameter",
}
"""Entries of `HfFormat.constants` for tensors in files of older versions of transformers."""
LAYERS: Final = "encoder/layers/"
"""Where the stacked layers are among our parameters."""
_LAYER: Final = "encoder.layer.{layer}."
POST_NORM: Final = (
    *embedding("encoder/embeddings/word", "embeddings.word_embeddings"),
    *embedding("encoder/embeddings/position", "embeddings.position_embeddings"),
    *embedding("encoder/embeddings/type", "embeddings.token_type_embeddings"),
    *norm("encoder/embeddings/norm", "embeddings.LayerNorm"),
    *dense(f"{LAYERS}attention/query", f"{_LAYER}attention.self.query"),
    *dense(f"{LAYERS}attention/key", f"{_LAYER}attention.self.key"),
    *dense(f"{LAYERS}attention/value", f"{_LAYER}attention.self.value"),
    *dense(f"{LAYERS}attention/output", f"{_LAYER}attention.output.dense"),
    *norm(f"{LAYERS}attention_norm", f"{_LAYER}attention.output.LayerNorm"),
    *dense(f"{LAYERS}intermediate", f"{_LAYER}intermediate.dense"),
    *dense(f"{LAYERS}output", f"{_LAYER}output.dense"),
    *norm(f"{LAYERS}output_norm", f"{_LAYER}output.LayerNorm"),
    *dense("pooler/dense", "pooler.dense"),
)
"""Rules of the encoders that share BERT's layers."""


class ClassHeads(NamedTuple):
    """The heads of a model class in Hugging Face transformers."""

    pooler: bool = False
    mlm: bool = False
    next_sentence: bool = False
    replaced_tokens: bool = False
    causal: bool = False  # whether attention is left to right
    task: TaskName | None = None

    def of_model(
        self,
        *,
        labels: tuple[str, ...],
        problem: ProblemName | None,
        task_dropout: float | None,
    ) -> HeadsSection:
        """Returns these heads of a model. Heads without labels or dropout ignore the arguments."""
        return HeadsSection(
            **self._asdict(),
            labels=labels if self.task in LABELLED else (),
            problem=problem if self.task == "sequence_classification" else None,
            task_dropout=task_dropout if self.task is not None else None,
        )


TASK_CLASSES: Final[Mapping[str, ClassHeads]] = {
    "ForSequenceClassification": ClassHeads(task="sequence_classification"),
    "ForMultipleChoice": ClassHeads(task="multiple_choice"),
    "ForTokenClassification": ClassHeads(task="token_classification"),
    "ForQuestionAnswering": ClassHeads(task="question_answering"),
    BARE: ClassHeads(),
}
"""Classes of most encoders, by the end of their names."""
POOLED_CLASSES: Final = {
    **TASK_CLASSES,
    "ForSequenceClassification": ClassHeads(pooler=True, task="sequence_classification"),
    "ForMultipleChoice": ClassHeads(pooler=True, task="multiple_choice"),
}
"""The same classes with BERT's pooler, which is optional in the bare one."""
TASK_NAMES: Final[Mapping[TaskName, tuple[NameRule, ...]]] = {
    "sequence_classification": dense("task", "classifier"),
    "multiple_choice": dense("task", "classifier"),
    "token_classification": dense("task", "classifier"),
    "question_answering": dense("task", "qa_outputs"),
}
"""Rules of the task heads of most encoders."""


class HfConfig(Section):
    """The keys that we read from a config.json. The defaults equal Hugging Face's.

    The subclass of an encoder also inherits from its architecture. A key with a literal type allows
    only the value that the encoder has.
    """

    model_config = pydantic.ConfigDict(extra="ignore", validate_default=False)

    architecture_type: ClassVar[type[EncoderArchitecture]]
    keys: ClassVar[Mapping[str, str]] = {}
    """Hugging Face's names of settings, by our names. Other settings have equal names."""
    ids: ClassVar[Mapping[str, str]] = {"pad_token_id": "pad"}
    """Fields of `SpecialIds` by the key that an export writes."""

    fixed: ClassVar[Mapping[str, object]] = {"position_embedding": "learned"}
    """Our settings that the format lacks, with the value that its models have. `bert-jax export`
    refuses other values."""

    added: ClassVar[frozenset[str]] = frozenset()
    """Our settings that only we read from the file. A zero is not written."""

    model_type: str = "bert"
    is_decoder: bool = False
    tie_word_embeddings: bool = True
    architectures: list[str] | None = None
    id2label: dict[str, str | int] | None = None
    num_labels: int | None = pydantic.Field(default=None, ge=1, le=1 << 20)
    problem_type: ProblemType | None = None
    classifier_dropout: float | None = pydantic.Field(default=None, ge=0, lt=1)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _unread(cls, values: object) -> object:
        """Raises SettingError if a key that changes no result has a value of a wrong type."""
        for key, (kinds, allowed) in _UNREAD.items():
            found = values.get(key) if isinstance(values, Mapping) else None
            if found is not None and type(found) not in kinds:
                raise SettingError.wrong(
                    "import.setting_type", f"{found!s:.60}", allowed, place=key
                )
        return values

    @pydantic.field_validator(*_ACTIVATIONS_OF_US, mode="before", check_fields=False)
    @classmethod
    def _activation(cls, name: object) -> object:
        if not isinstance(name, str) or name not in ACTIVATIONS:
            raise SettingError.unknown("import.activation", str(name), ACTIVATIONS)
        return ACTIVATIONS[name]

    @pydantic.field_validator("id2label")
    @classmethod
    def _numbered(cls, named: dict[str, str | int] | None) -> dict[str, str | int] | None:
        if named is not None and named.keys() != {str(index) for index in range(len(named) or 1)}:
            raise SettingError.wrong(
                "import.label_numbers", f"labels for {commas(named)}", "labels for 0, 1, 2, …"
            )
        return named

    @property
    def architecture(self) -> Any:
        """The architecture, of the encoder's own class."""
        settings = set(self.architecture_type.model_fields)
        return self.architecture_type(**self.model_dump(include=settings))

    @property
    def generator(self) -> Any:
        """The architecture, if the file describes the generator of a model's pretraining."""
        return self.architecture

    @property
    def problem(self) -> ProblemName | None:
        """Problem of a sequence classifier, or None if the file does not name it."""
        return None if self.problem_type is None else PROBLEMS[self.problem_type]

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of a classifier's outputs, by index."""
        named, count = self.id2label, self.num_labels or 2
        if named is None or self.names_replaced:
            return tuple(f"LABEL_{index}" for index in range(count))
        return tuple(str(named[str(index)]) for index in range(len(named)))

    @property
    def names_replaced(self) -> bool:
        """Whether `id2label` has too few names. Hugging Face then names every output LABEL_n."""
        return self.id2label is not None and (self.num_labels or 0) > len(self.id2label)

    @classmethod
    def written(cls, architecture: Any, special: SpecialIds) -> dict[str, Any]:
        """Returns the keys and values of an architecture, and the ids of special pieces."""
        settings = architecture.model_dump(exclude=set(cls.fixed))
        settings = {
            name: value for name, value in settings.items() if value or name not in cls.added
        }
        for name in _ACTIVATIONS_OF_US:
            if name in settings:
                ours = settings.pop(name)
                settings[name] = next(
                    theirs for theirs in ACTIVATIONS if ACTIVATIONS[theirs] == ours
                )
        named = {cls.keys.get(name, name): value for name, value in settings.items()}
        return named | {key: getattr(special, field) for key, field in cls.ids.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class HfFormat:
    """Classes, configuration and tensors of an encoder in Hugging Face's files."""

    title: str
    """Name of the encoder in text: ``BERT``."""
    model_types: Mapping[str, str]
    """Start of the class names by `model_type`: ``{"bert": "Bert"}``. An export writes the first
    one by default."""
    classes: Mapping[str, ClassHeads]
    """Heads by the end of a class name: ``{"ForMaskedLM": ClassHeads(mlm=True)}``."""
    config: type[HfConfig]
    prefix: str
    """Start of the names of `encoder` in classes with heads: ``bert.``."""
    encoder: Rules
    """Tensors of the class without heads."""
    heads: Rules
    """Tensors of the pretraining heads."""
    tasks: Mapping[TaskName, Rules]
    """Tensors of a task's head."""
    tied: Mapping[str, str]
    """Paths of our tensors by a second name that a file may have for them."""
    constants: Mapping[str, str]
    """Patterns of names of other tensors that are not parameters, with the reasons."""
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Starts of tensor names in other files of the encoder, with the starts that replace them."""

    def names(self, prefix: str, task: TaskName | None) -> Rules:
        """Returns the rules of all tensors. The `prefix` is the format's prefix or empty."""
        encoder = tuple(rule._replace(theirs=prefix + rule.theirs) for rule in self.encoder)
        return (*encoder, *self.heads, *(() if task is None else self.tasks[task]))

    @property
    def ignored(self) -> dict[str, str]:
        """Patterns of tensor names that are not parameters, with the reasons."""
        again = {rule.ours: f"{rule.theirs} again" for rule in self.heads}
        table = "the embedding table again: the decoder is tied to it"
        tied = {second: again.get(ours, table) for second, ours in self.tied.items()}
        return {**self.constants, **tied}

    @property
    def bare(self) -> str:
        """The end of the name of the class without heads."""
        return next(end for end, heads in self.classes.items() if heads == ClassHeads())

    def class_names(self, model_type: str | None = None) -> dict[str, tuple[str, ClassHeads]]:
        """Returns `model_type` and heads by class name, of one model type or all model types."""
        return {
            start + end: (name, heads)
            for name, start in self.model_types.items()
            for end, heads in self.classes.items()
            if model_type in (None, name)
        }
