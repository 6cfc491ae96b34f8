"""The model's settings: what it is (architecture) and how it is computed (execution)."""

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
# By the compiler's own code, or by one of our kernels.
Implementation = Literal["auto", "xla", "fused"]
TaskName = Literal[
    "sequence_classification", "token_classification", "question_answering", "multiple_choice"
]
ProblemName = Literal["single_label", "multi_label", "regression"]

# Layers, hidden size, heads: the released sizes (arXiv 1810.04805 and, for the small ones,
# arXiv 1908.08962). The FFN is 4 hidden sizes wide and a head 64 columns.
SIZES: Final[dict[str, tuple[int, int, int]]] = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}

VOCAB_MULTIPLE: Final = 128

# The name "gelu" in a 2018 bert_config.json means what modeling.py computes: the tanh form.
GOOGLE_BERT_ACTIVATIONS: Final[dict[str, Activation]] = {"gelu": "gelu_tanh", "relu": "relu"}


class Architecture(Section):
    """Sizes and settings that determine the parameters and the function they compute."""

    # The upper bounds are far beyond any BERT: they refuse a mistyped or hostile size at once.
    vocab_size: int = pydantic.Field(ge=1, le=1 << 24)
    """Rows of the embedding table: one for each piece of the tokenizer, or more. The softmax of
    the MLM head includes all rows."""
    hidden_size: int = pydantic.Field(ge=1, le=1 << 16)
    """Columns of every hidden state."""
    num_hidden_layers: int = pydantic.Field(ge=1, le=1000)
    """Layers of the encoder."""
    num_attention_heads: int = pydantic.Field(ge=1, le=1 << 10)
    """Heads of each layer; they divide `hidden_size`."""
    intermediate_size: int = pydantic.Field(ge=1, le=1 << 18)
    """Columns inside the FFN."""
    max_position_embeddings: int = pydantic.Field(default=512, ge=1, le=1 << 20)
    """Positions with an embedding: the longest row."""
    type_vocab_size: int = pydantic.Field(default=2, ge=1, le=1 << 10)
    """Token types; with 1 both spans have the same."""
    hidden_act: Activation = "gelu_tanh"
    """Of FFN and MLM head. `gelu_tanh` is what google-research/bert computes for `gelu`."""
    hidden_dropout_prob: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Of embeddings and of the output of attention and FFN."""
    attention_probs_dropout_prob: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Of attention weights."""
    initializer_range: float = pydantic.Field(default=0.02, gt=0)
    """Standard deviation of the truncated normal that parameters start from."""
    layer_norm_eps: float = pydantic.Field(default=1e-12, gt=0)
    """Added to the variance in LayerNorm."""

    @property
    def head_dim(self) -> int:
        """Columns of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding table: a multiple of 128, for matrix units and tensor axes."""
        return -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE

    @pydantic.model_validator(mode="after")
    def _whole_heads(self) -> Architecture:
        if self.hidden_size % self.num_attention_heads:
            raise SettingError(
                "model.heads",
                "found {found}, which does not divide hidden_size = {hidden_size}",
                place="num_attention_heads",
                found=self.num_attention_heads,
                hidden_size=self.hidden_size,
            )
        return self

    def with_dropout(self, rate: float) -> Architecture:
        """Returns the architecture with one rate for hidden states and attention."""
        rates = {"hidden_dropout_prob": rate, "attention_probs_dropout_prob": rate}
        return self.model_copy(update=rates)


class Execution(Section):
    """How the function is computed. A checkpoint stays valid if these settings change."""

    dtype: Dtype = "bfloat16"
    """Of activations. Parameters, softmax, LayerNorm and loss are float32 in any case."""
    gradient_dtype: Dtype = "float32"
    """Dtype of the sums of gradients over devices; parameters are float32."""
    attention: Implementation = "auto"
    """`xla`: plain JAX, anywhere. `fused`: one kernel on v4, v5e, v5p and v6e, for rows of up to
    2,048 tokens where a device has pairs of heads of 64 in bfloat16, of up to 512 with most others.
    `auto`: in training `fused` where it can run, else `xla`; `bert-jax doctor` says which."""
    norm: Implementation = "auto"
    """LayerNorm of the sums in an encoder layer. `xla`: plain JAX, anywhere. `fused`: a kernel, and
    one for its gradient and dropout's, on v4, v5e, v5p and v6e, where 128 divides the hidden size.
    `auto`: in training `fused` where it can run, else `xla`."""
    loss: Implementation = "auto"
    """Of masked pieces in pretraining. `xla`: plain JAX, anywhere. `fused`: the product with the
    vocabulary's table and its softmax in one kernel, on v4, v5e, v5p and v6e, for hidden sizes up
    to 2,304 in bfloat16, 1,920 in float32. `auto`: `fused` where it can run, else `xla`."""
    ffn: Implementation = "auto"
    """GELU's gradient in the FFN. `xla`: plain JAX, anywhere. `fused`: in a kernel with the product
    before it, on v4, v5e, v5p and v6e, for `hidden_act: gelu_tanh` in bfloat16 where 128 divides
    the widths of a device. `auto`: in training `fused` where it can run, else `xla`."""
    remat: Remat = "none"
    """Arrays that the backward pass computes again: attention weights, all but products, or whole
    layers."""
    unroll: int | None = pydantic.Field(default=None, ge=1)
    """Layers per trip of the loop over layers. Default: all of up to 24 in training on a TPU, all
    of up to 4 elsewhere, else one."""

    def elsewhere(self) -> Execution:
        """Returns the settings for other devices: `fused` becomes `auto`.

        Without it a CPU would interpret the kernels that a run had on its own devices.
        """
        kernels = self.model_dump(include={"attention", "norm", "loss", "ffn"})
        return self.model_copy(update={key: "auto" for key in kernels if kernels[key] == "fused"})


class HeadsSection(Section):
    """The heads on the encoder. Pretraining needs its three; an imported model may lack some."""

    pooler: bool = True
    """tanh of a dense layer on [CLS]."""
    mlm: bool = True
    """The masked language model's head."""
    next_sentence: bool = True
    """The pair task's head."""
    task: TaskName | None = None
    """A fine-tuned head."""
    labels: tuple[str, ...] = ()
    """Names of its outputs."""
    problem: ProblemName | None = None
    """Of sequence classification. None: not known."""
    task_dropout: float | None = pydantic.Field(default=None, ge=0, lt=1)
    """Before the task's head. None: `hidden_dropout_prob`."""

    @property
    def pretraining(self) -> bool:
        """Whether both pretraining objectives can be computed."""
        return self.pooler and self.mlm and self.next_sentence

    @property
    def reads_pooled(self) -> bool:
        """Whether the task head reads the pooled [CLS] and not every token."""
        return self.task in ("sequence_classification", "multiple_choice")

    @property
    def outputs(self) -> int:
        """Columns of the task head."""
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
        """Values of an architecture, each optional."""

        vocab_size: int | None = None

else:
    ArchitectureChanges = pydantic.create_model(
        "ArchitectureChanges",
        __base__=Section,
        **{
            # `Annotated` needs an argument: the name stands for no constraints.
            name: (Annotated[Optional[field.annotation], name, *field.metadata], None)  # noqa: UP045
            for name, field in Architecture.model_fields.items()
        },
    )


class ModelSection(Section):
    """A named size or a `bert_config.json`, other values of the architecture, and execution.

    ``model: {size: tiny, architecture: {hidden_dropout_prob: 0.0}, execution: {dtype: float32}}``
    """

    size: Size | None = None
    """Layers × hidden size × heads: tiny 2 × 128 × 2, mini 4 × 256 × 4, small 4 × 512 × 8, medium 8
    × 512 × 8, base 12 × 768 × 12, large 24 × 1024 × 16."""
    bert_config: PathText | None = None
    """A `bert_config.json` of google-research/bert, or a `config.json` of Hugging Face."""
    architecture: ArchitectureChanges = ArchitectureChanges()
    """The whole architecture, or values beside `size` or `bert_config`: dropout, positions and
    others. Layers, widths and heads come from one place."""
    execution: Execution = Execution()
    """How it is computed; a checkpoint stays valid if this changes."""
    heads: HeadsSection = HeadsSection()
    """The heads on the encoder."""

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
        """Returns the section that spells out an architecture, without `vocab_size` if implied."""
        implied = {"vocab_size"} if architecture.vocab_size == pieces else set[str]()
        sizes = architecture.model_dump(exclude=implied)
        return cls(architecture=ArchitectureChanges(**sizes), execution=execution, heads=heads)


def resolve_architecture(section: ModelSection, *, vocab_size: int) -> Architecture:
    """Returns the architecture a section describes, for a tokenizer of `vocab_size` pieces.

    The embedding has one row for each piece, or `architecture.vocab_size` rows if that is set.

    Raises:
        UserError: sizes missing or contradictory, fewer rows than pieces, heads that do not divide
            the hidden size, an unreadable or foreign `bert_config.json`.
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
    """Returns the four values of a named size."""
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
    """Raises SettingError if an architecture changes one of a size's or file's four values."""
    changed = architecture.model_dump(exclude_none=True)
    for name in _sizes_of("base"):
        if name in changed and sizes.get(name, changed[name]) != changed[name]:
            raise SettingError(
                "model.two_sizes",
                'found "{found}" ({name} {size}) and model.architecture.{name} {other}, allowed: '
                "one. Remove the other with model.architecture={{}} or model.{source}=null.",
                place=key,
                found=f"{found:.200}",
                name=name,
                size=sizes[name],
                other=changed[name],
                source=key,
            )


def _read_bert_config(path: str, *, vocab_size: int) -> dict[str, object]:
    """Reads a file of google-research/bert and translates its "gelu"."""
    try:
        values = read_json_object(epath.Path(path))
        # The multilingual and Chinese files have pooler_* and directionality, which nothing reads.
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
