"""Settings of the model: its architecture, its execution and its heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final, Literal, Optional

import pydantic
from etils import epath

from bert_jax.errors import SettingError, UserError
from bert_jax.files.read import read_json_object
from bert_jax.section import PathText, Section
from bert_jax.validation import validate

Size = Literal["tiny", "mini", "small", "medium", "base", "large"]
Activation = Literal["gelu_tanh", "gelu_erf", "relu"]
Dtype = Literal["float32", "bfloat16"]
Remat = Literal["none", "attention", "dots", "full"]
# `xla`: plain JAX. `fused`: a Pallas kernel.
Implementation = Literal["auto", "xla", "fused"]
TaskName = Literal[
    "sequence_classification", "token_classification", "question_answering", "multiple_choice"
]
ProblemName = Literal["single_label", "multi_label", "regression"]

# Layers, hidden size and heads of the released models (arXiv 1810.04805 and 1908.08962). The FFN is
# 4 hidden sizes wide, and a head has 64 columns.
SIZES: Final[dict[str, tuple[int, int, int]]] = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}

VOCAB_MULTIPLE: Final = 128

# In google-research/bert, "gelu" is the tanh approximation.
GOOGLE_BERT_ACTIVATIONS: Final[dict[str, Activation]] = {"gelu": "gelu_tanh", "relu": "relu"}


class EncoderArchitecture(Section):
    """The properties that the architectures of all encoders have."""

    if TYPE_CHECKING:  # limits and defaults differ between encoders
        vocab_size: int
        hidden_size: int
        num_hidden_layers: int
        num_attention_heads: int
        intermediate_size: int
        initializer_range: float
        layer_norm_eps: float

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the table with padding to a multiple of 128, for matrix units and sharding."""
        return -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE

    @pydantic.model_validator(mode="after")
    def _whole_heads(self) -> EncoderArchitecture:
        if self.hidden_size % self.num_attention_heads:
            raise SettingError(
                "model.heads",
                "found {found}, which does not divide hidden_size = {hidden_size}",
                place="num_attention_heads",
                found=self.num_attention_heads,
                hidden_size=self.hidden_size,
            )
        return self


class Architecture(EncoderArchitecture):
    """Sizes and settings that determine the parameters and the function of the model."""

    # The upper bounds reject mistyped or hostile sizes. They are far larger than any BERT.
    vocab_size: int = pydantic.Field(ge=1, le=1 << 24)
    """Number of rows of the embedding table, at least the number of pieces of the tokenizer. The
    softmax of the MLM head includes all rows."""
    hidden_size: int = pydantic.Field(ge=1, le=1 << 16)
    """Width of hidden states."""
    num_hidden_layers: int = pydantic.Field(ge=1, le=1000)
    """Number of layers of the encoder."""
    num_attention_heads: int = pydantic.Field(ge=1, le=1 << 10)
    """Number of attention heads per layer. It must divide `hidden_size`."""
    intermediate_size: int = pydantic.Field(ge=1, le=1 << 18)
    """Width of the hidden layer of the FFN."""
    max_position_embeddings: int = pydantic.Field(default=512, ge=1, le=1 << 20)
    """Number of position embeddings, which is the maximum length of a row."""
    type_vocab_size: int = pydantic.Field(default=2, ge=1, le=1 << 10)
    """Number of token types. With 1, both spans have the same type."""
    hidden_act: Activation = "gelu_tanh"
    """Activation of the FFN and the MLM head. google-research/bert calls `gelu_tanh` "gelu"."""
    hidden_dropout_prob: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Dropout rate of embeddings and of the outputs of attention and FFN."""
    attention_probs_dropout_prob: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Dropout rate of attention weights."""
    initializer_range: float = pydantic.Field(default=0.02, gt=0)
    """Standard deviation of the truncated normal distribution of initial parameters."""
    layer_norm_eps: float = pydantic.Field(default=1e-12, gt=0)
    """Constant that is added to the variance in LayerNorm."""

    def with_dropout(self, rate: float) -> Architecture:
        """Returns the architecture with the same dropout rate for hidden states and attention."""
        rates = {"hidden_dropout_prob": rate, "attention_probs_dropout_prob": rate}
        return self.model_copy(update=rates)


class Execution(Section):
    """How the model is computed. A checkpoint stays valid if these settings change."""

    dtype: Dtype = "bfloat16"
    """Dtype of activations. Parameters, softmax, LayerNorm and loss are always float32."""
    gradient_dtype: Dtype = "float32"
    """Dtype in which gradients are summed over devices."""
    attention: Implementation = "auto"
    """Implementation of attention. `xla`: plain JAX on any device. `fused`: a kernel on v4, v5e,
    v5p and v6e. It supports rows of up to 2,048 tokens for pairs of 64-column heads in bfloat16,
    and of up to 512 tokens for most other heads. `auto`: `fused` in training if possible, otherwise
    `xla`. `bert-jax doctor` shows the choice."""
    norm: Implementation = "auto"
    """Implementation of LayerNorm in encoder layers. `xla`: plain JAX on any device. `fused`: a
    kernel for LayerNorm and a kernel for the gradients of LayerNorm and dropout, on v4, v5e, v5p
    and v6e. The hidden size must be a multiple of 128. `auto`: `fused` in training if possible,
    otherwise `xla`."""
    loss: Implementation = "auto"
    """Implementation of the MLM loss. `xla`: plain JAX on any device. `fused`: a kernel for both
    the product with the vocabulary's table and the softmax, on v4, v5e, v5p and v6e, for hidden
    sizes up to 2,304 in bfloat16 and 1,920 in float32. `auto`: `fused` if possible, otherwise
    `xla`."""
    ffn: Implementation = "auto"
    """Implementation of the gradient of GELU in the FFN. `xla`: plain JAX on any device. `fused`: a
    kernel that includes the preceding product, on v4, v5e, v5p and v6e, for `hidden_act: gelu_tanh`
    in bfloat16. `hidden_size` and each device's share of `intermediate_size` must be multiples
    of 128. `auto`: `fused` in training if possible, otherwise `xla`."""
    remat: Remat = "none"
    """What the backward pass recomputes. `attention`: attention weights. `dots`: everything except
    products. `full`: whole layers."""
    unroll: int | None = pydantic.Field(default=None, ge=1)
    """Number of layers per iteration of the loop over layers. Default: all layers if the model has
    at most 24 (TPU training) or 4 (otherwise); 1 for deeper models."""

    def elsewhere(self) -> Execution:
        """Returns the settings for other devices than the run's: `fused` becomes `auto`.

        With `fused`, a CPU would interpret the kernels, which is slow.
        """
        kernels = self.model_dump(include={"attention", "norm", "loss", "ffn"})
        return self.model_copy(update={key: "auto" for key in kernels if kernels[key] == "fused"})


class HeadsSection(Section):
    """The heads of the model. Pretraining needs `pooler`, `mlm` and `next_sentence`."""

    pooler: bool = True
    """Whether the model has the pooler: a dense layer with tanh on [CLS]."""
    mlm: bool = True
    """Whether the model has the MLM head."""
    next_sentence: bool = True
    """Whether the model has the head for next-sentence or sentence-order prediction."""
    task: TaskName | None = None
    """The task of a fine-tuned head."""
    labels: tuple[str, ...] = ()
    """Names of the outputs of the task head."""
    problem: ProblemName | None = None
    """Kind of sequence classification. If null, it is unknown."""
    task_dropout: float | None = pydantic.Field(default=None, ge=0, lt=1)
    """Dropout rate before the task head. Default: `hidden_dropout_prob`."""

    @property
    def pretraining(self) -> bool:
        """Whether the model has all heads of pretraining."""
        return self.pooler and self.mlm and self.next_sentence

    @property
    def reads_pooled(self) -> bool:
        """Whether the task head reads the pooled [CLS] instead of every token."""
        return self.task in ("sequence_classification", "multiple_choice")

    @property
    def outputs(self) -> int:
        """Number of outputs of the task head."""
        fixed = {"question_answering": 2, "multiple_choice": 1}
        return fixed.get(self.task or "", len(self.labels))

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> HeadsSection:
        if not self.pooler and (self.next_sentence or self.reads_pooled):
            raise SettingError(
                "model.pooler", "found false, but another head needs it", place="pooler"
            )
        if self.task is not None and self.outputs == 0:
            raise SettingError(
                "model.labels",
                "found none, allowed: a name for each output of the task head",
                place="labels",
            )
        return self


if TYPE_CHECKING:

    class ArchitectureChanges(Section):
        """Settings of `Architecture`, all optional."""

        vocab_size: int | None = None

else:
    ArchitectureChanges = pydantic.create_model(
        "ArchitectureChanges",
        __base__=Section,
        **{
            # `Annotated` requires metadata, so pass the name, which pydantic ignores.
            name: (Annotated[Optional[field.annotation], name, *field.metadata], None)  # noqa: UP045
            for name, field in Architecture.model_fields.items()
        },
    )


class ModelSection(Section):
    """The model: sizes from a name or a `bert_config.json`, other settings, heads and execution.

    ``model: {size: tiny, architecture: {hidden_dropout_prob: 0.0}, execution: {dtype: float32}}``
    """

    size: Size | None = None
    """A named size. Layers × hidden size × heads: tiny 2 × 128 × 2, mini 4 × 256 × 4, small 4 × 512
    × 8, medium 8 × 512 × 8, base 12 × 768 × 12, large 24 × 1024 × 16."""
    bert_config: PathText | None = None
    """Path of a `bert_config.json` of google-research/bert, or a `config.json` of Hugging Face."""
    architecture: ArchitectureChanges = ArchitectureChanges()
    """The whole architecture, or changes to `size` or `bert_config`, such as dropout and positions.
    Layers, widths and heads must come from one source."""
    execution: Execution = Execution()
    """How the model is computed. A checkpoint stays valid if these settings change."""
    heads: HeadsSection = HeadsSection()
    """The heads of the model."""

    @pydantic.model_validator(mode="after")
    def _one_source(self) -> ModelSection:
        if self.size is None:
            return self
        if self.bert_config is not None:
            raise SettingError(
                "model.two_sources",
                "found together with model.bert_config. Set only one of them.",
                place="size",
            )
        _refuse_other_sizes("size", self.size, _sizes_of(self.size), self.architecture)
        return self

    @classmethod
    def of(
        cls, architecture: Architecture, *, pieces: int, execution: Execution, heads: HeadsSection
    ) -> ModelSection:
        """Returns the section with all sizes of an architecture.

        Omits `vocab_size` if it equals `pieces`, the number of pieces of the tokenizer.
        """
        implied = {"vocab_size"} if architecture.vocab_size == pieces else set[str]()
        sizes = architecture.model_dump(exclude=implied)
        return cls(architecture=ArchitectureChanges(**sizes), execution=execution, heads=heads)


def resolve_architecture(section: ModelSection, *, vocab_size: int) -> Architecture:
    """Returns the architecture of a section, for a tokenizer with `vocab_size` pieces.

    The embedding has one row per piece, or `architecture.vocab_size` rows if that is set.

    Raises:
        UserError: Sizes are missing or contradictory, there are fewer rows than pieces, the heads
            do not divide the hidden size, or the `bert_config.json` is unreadable or unsupported.
    """
    rows = section.architecture.vocab_size or vocab_size
    if rows < vocab_size:
        raise UserError(
            "model.vocab_size",
            "found {found}, but the tokenizer has {pieces} pieces. Use at least {pieces}.",
            place="model.architecture.vocab_size",
            found=rows,
            pieces=vocab_size,
        )
    values: dict[str, object] = {}
    if section.size is not None:
        values = {**_sizes_of(section.size)}
    elif section.bert_config is not None:
        path = section.bert_config
        values = _read_bert_config(path, vocab_size=rows)
        try:
            _refuse_other_sizes("bert_config", path, values, section.architecture)
        except SettingError as error:
            raise error.at(f"model.{error.values['place']}") from None
    values |= section.architecture.model_dump(exclude_none=True)
    values["vocab_size"] = rows
    needed = sorted(_sizes_of("base"))
    if missing := [key for key in needed if key not in values]:
        raise UserError(
            "model.sizes_missing",
            "{missing} missing. Set model.size ({sizes:or}), model.bert_config, or all of "
            "{needed}.",
            place="model.architecture",
            missing=missing,
            sizes=list(SIZES),
            needed=needed,
        )
    return validate(Architecture, values, source="", key="model.architecture")


def _sizes_of(size: Size) -> dict[str, int]:
    """Returns the layers, hidden size, heads and FFN width of a named size."""
    layers, hidden, heads = SIZES[size]
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
    }


def _refuse_other_sizes(
    key: str, found: str, sizes: Mapping[str, object], architecture: ArchitectureChanges
) -> None:
    """Raises SettingError if an architecture contradicts the sizes of a name or a file."""
    changed = architecture.model_dump(exclude_none=True)
    for name in _sizes_of("base"):
        if name in changed and sizes.get(name, changed[name]) != changed[name]:
            raise SettingError(
                "model.two_sizes",
                'found "{found}" ({name} {size}), but model.architecture.{name} is {other}. Remove '
                "one of them with model.architecture={{}} or model.{source}=null.",
                place=key,
                found=f"{found:.200}",
                name=name,
                size=sizes[name],
                other=changed[name],
                source=key,
            )


def _read_bert_config(path: str, *, vocab_size: int) -> dict[str, object]:
    """Reads a `bert_config.json` and replaces "gelu" by `gelu_tanh`."""
    try:
        values = read_json_object(epath.Path(path))
        # Delete unused keys of the multilingual and Chinese models.
        for key in [key for key in values if key.startswith("pooler_") or key == "directionality"]:
            del values[key]
        activation = str(values.get("hidden_act", "gelu"))
        if activation not in GOOGLE_BERT_ACTIVATIONS:
            raise UserError(
                "model.activation",
                'hidden_act is "{found}", allowed: {allowed}',
                place=path,
                found=f"{activation:.60}",
                allowed=list(GOOGLE_BERT_ACTIVATIONS),
            )
        values["hidden_act"] = GOOGLE_BERT_ACTIVATIONS[activation]
        if values.get("vocab_size", vocab_size) != vocab_size:
            raise UserError(
                "model.vocab_size_of_file",
                "vocab_size is {found}, but the tokenizer has {pieces} pieces",
                place=path,
                found=values["vocab_size"],
                pieces=vocab_size,
            )
        validate(Architecture, {**values, "vocab_size": vocab_size}, source=path)
    except UserError as error:
        raise error.located("model.bert_config") from error
    return values
