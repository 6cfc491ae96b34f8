"""Settings of the model that all encoders share: execution, heads, and where sizes come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, NamedTuple, Optional

import pydantic

from bert_jax.errors import SettingError, UserError, commas, one_of
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.text_head import (
    CrossEncoderSection,
    PoolingSection,
    SparseHeadSection,
    TextHeadSection,
    TokenVectorsSection,
    VectorHeadSection,
)
from bert_jax.section import Section
from bert_jax.validation import validate

Dtype = Literal["float32", "bfloat16"]
GradientDtype = Literal["auto", "float32", "bfloat16"]
Remat = Literal["none", "attention", "dots", "full"]
# `xla`: plain JAX. `fused`: a Pallas kernel. `cudnn`: cuDNN's kernel.
Implementation = Literal["auto", "xla", "fused"]
AttentionImplementation = Literal["auto", "xla", "fused", "cudnn"]
TaskName = Literal[
    "sequence_classification", "token_classification", "question_answering", "multiple_choice"
]
ProblemName = Literal["single_label", "multi_label", "regression"]

DEFAULT_MAX_LENGTH: Final = 512  # tokens of a text, or the positions of the model if fewer

# Settings of an architecture that must come from one source.
SIZES: Final = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")


class Execution(Section):
    """How the model is computed. A checkpoint stays valid if these settings change."""

    dtype: Dtype = "bfloat16"
    """Dtype of activations. Parameters, softmax, LayerNorm and loss are always float32. `float32`
    also multiplies matrices in full precision, which takes a TPU six passes of bfloat16."""
    gradient_dtype: GradientDtype = "auto"
    """Dtype in which devices sum gradients. `auto`: bfloat16 on several TPU chips if `dtype` is."""
    attention: AttentionImplementation = "auto"
    """Implementation of attention. `xla`: plain JAX on any device. `fused`: a kernel on v4, v5e,
    v5p and v6e. BERT's kernel supports rows of up to 2,048 tokens for pairs of 64-column heads in
    bfloat16, and of up to 512 tokens for most other heads. ModernBERT's kernel supports rows of up
    to 8,192 tokens, on v4 up to 1,024. `cudnn`: cuDNN's kernel on NVIDIA GPUs, in bfloat16 and
    without dropout of attention weights. `auto`: `fused` or `cudnn` in training if possible,
    otherwise `xla`. `bert-jax doctor` shows the choice."""
    norm: Implementation = "auto"
    """Implementation of LayerNorm in encoder layers. `xla`: plain JAX on any device. `fused`: a
    kernel for LayerNorm and a kernel for the gradients of LayerNorm and dropout, on v4, v5e, v5p
    and v6e. The hidden size must be a multiple of 128. `auto`: `fused` in training if possible,
    otherwise `xla`."""
    loss: Implementation = "auto"
    """Implementation of the MLM loss. `xla`: plain JAX on any device. `fused`: a kernel for both
    the product with the vocabulary's table and the softmax, on v4, v5e, v5p and v6e, for hidden
    sizes up to 2,304 in bfloat16 and 1,280 in float32. `auto`: `fused` if possible, otherwise
    `xla`."""
    ffn: Implementation = "auto"
    """Implementation of the gradient of GELU in the FFN. `xla`: plain JAX on any device. `fused`: a
    kernel that includes the preceding product, on v4, v5e, v5p and v6e, in bfloat16, for both forms
    of GELU. `hidden_size` must be a multiple of 128. BERT: each device's share of
    `intermediate_size` too. ModernBERT: `hidden_act: gelu_erf` and `mlp_dropout: 0`. `auto`:
    `fused` in training if possible, otherwise `xla`."""
    remat: Remat = "none"
    """What the backward pass recomputes. `attention`: attention weights. `dots`: everything except
    products. `full`: whole layers."""
    unroll: int | None = pydantic.Field(default=None, ge=1)
    """Number of layers per iteration of the loop over layers. Default: all layers if the model has
    at most 28 (TPU training) or 4 (otherwise); 1 for deeper models."""

    @property
    def sum_dtype(self) -> Dtype:
        """The dtype of sums over devices; float32 until `auto` is resolved."""
        return "float32" if self.gradient_dtype == "auto" else self.gradient_dtype

    def elsewhere(self) -> Execution:
        """Returns the settings for other devices than the run's: kernels become `auto`.

        With `fused`, a CPU would interpret the kernels, which is slow. It has no `cudnn`.
        """
        parts = self.model_dump(include={"attention", "norm", "loss", "ffn"})
        return self.model_copy(update={key: "auto" for key in parts if parts[key] != "xla"})


PRETRAINED_HEADS: Final = {
    "pooler": "a pooler",
    "mlm": "an MLM head",
    "next_sentence": "a next-sentence head",
    "replaced_tokens": "a replaced-token head",
}


class HeadsSection(Section):
    """The heads of the model, and which tokens they may learn from.

    In pretraining, the objective determines these settings. The encoder's parameters do not depend
    on them.
    """

    pooler: bool = True
    """Whether the model has the pooler: a dense layer with tanh on [CLS]. The next-sentence head
    reads it, and some task heads of BERT, ALBERT and RoBERTa."""
    mlm: bool = True
    """Whether the model has the MLM head."""
    next_sentence: bool = True
    """Whether the model has the head for next-sentence or sentence-order prediction."""
    replaced_tokens: bool = False
    """Whether the model has ELECTRA's head, which finds replaced tokens."""
    causal: bool = False
    """Whether attention is left to right: a token attends only to itself and to earlier tokens. A
    head of a sequence task then reads the last token instead of [CLS]. A fine-tuned model inherits
    the setting from `finetune.init_from`."""
    task: TaskName | None = None
    """The task of a fine-tuned head."""
    labels: tuple[str, ...] = ()
    """Names of the outputs of the task head."""
    integer_labels: bool = False
    """Whether the labels are whole numbers. Predictions then have numbers instead of texts."""
    split_punctuation: bool = True
    """Token classification: whether texts are split at punctuation. If not, only at blanks."""
    problem: ProblemName | None = None
    """Kind of sequence classification. If null, it is unknown."""
    task_dropout: float | None = pydantic.Field(default=None, ge=0, lt=1)
    """Dropout rate before the task head. Default: `hidden_dropout_prob`; ALBERT:
    `classifier_dropout_prob`."""
    embedding: PoolingSection | None = None
    """How a model of sentence embeddings computes the vector of a text. null: it was not trained
    for this."""
    sparse: SparseHeadSection | None = None
    """How a sparse encoder computes the weights of a text's pieces. null: it was not trained for
    this."""
    cross_encoder: CrossEncoderSection | None = None
    """How a cross-encoder computes the score of a pair of texts. null: it was not trained for
    this."""

    late_interaction: TokenVectorsSection | None = None
    """How a late-interaction model computes the vectors of a text's tokens. null: it was not
    trained for this."""

    @property
    def text_head(self) -> TextHeadSection | None:
        """How the model turns texts into what search compares. None: it was not trained for it."""
        return self.vectors or self.cross_encoder

    @property
    def vectors(self) -> VectorHeadSection | None:
        """How the model encodes a text by itself. None: it was not trained for it."""
        return self.embedding or self.sparse or self.late_interaction

    def longest_text(self, positions: int) -> int:
        """Returns the default limit of texts in tokens, for a model with `positions` positions."""
        limit = None if self.text_head is None else self.text_head.max_length
        return min(positions, limit or DEFAULT_MAX_LENGTH)

    @property
    def of_pretraining(self) -> set[str]:
        """Names of the model's heads of pretraining, such as `mlm`."""
        return {head for head in PRETRAINED_HEADS if getattr(self, head)}

    @property
    def scores_rows(self) -> bool:
        """Whether the task head scores whole rows instead of every token."""
        return self.task in ("sequence_classification", "multiple_choice")

    @property
    def outputs(self) -> int:
        """Number of outputs of the task head."""
        fixed = {"question_answering": 2, "multiple_choice": 1}
        return fixed.get(self.task or "", len(self.labels))

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> HeadsSection:
        if self.task is not None and self.outputs == 0:
            raise SettingError.wrong(
                "model.labels", "none", "a name for each output of the task head", place="labels"
            )
        return self


class ArchitectureChanges(Section):
    """The settings of an architecture `of`, all optional and null by default."""

    def __init_subclass__(cls, *, of: type[EncoderArchitecture]) -> None:
        """Adds the settings."""
        cls.__annotations__ = {
            # `Annotated` requires metadata, so pass the name, which pydantic ignores.
            name: Annotated[Optional[field.annotation], name, *field.metadata]  # noqa: UP045
            for name, field in of.model_fields.items()
        }
        for name in of.model_fields:
            setattr(cls, name, None)


class SizeSource(NamedTuple):
    """Where a section takes the sizes of the architecture from."""

    key: str  # setting: ``size``
    found: str  # its value: ``tiny``
    values: Mapping[str, object]  # settings of the architecture: ``{"num_hidden_layers": 2, …}``


class ModelSection(Section):
    """The model: an encoder, its sizes, its execution and its heads.

    The subclass of an encoder adds `kind`, `size` and `architecture`.
    """

    architecture_type: ClassVar[type[EncoderArchitecture]]
    generator_type: ClassVar[type[EncoderArchitecture] | None] = None
    """The architecture of generators of this kind. None: `architecture_type`."""
    named_sizes: ClassVar[Mapping[str, tuple[int, ...]]]
    """The values of `size_settings` by `size`. The last ones may be missing."""
    size_settings: ClassVar[tuple[str, ...]] = (*SIZES, "embedding_size")
    """The settings of the architecture that a size determines."""

    if TYPE_CHECKING:  # types and defaults differ between encoders
        kind: Any = ""
        size: Any = None
        architecture: Any = None
        """The whole architecture, or changes to `size`, such as dropout and positions. Layers,
        widths and heads must come from one source."""
    else:  # in the order of a configuration
        kind: str
        size: str | None = None
        architecture: Section = Section()
    execution: Execution = Execution()
    """How the model is computed. A checkpoint stays valid if these settings change."""
    heads: HeadsSection = HeadsSection()
    """The heads of the model. In pretraining, the objective determines them."""

    def size_source(self, *, vocab_size: int) -> SizeSource | None:
        """Returns the source of the sizes, or None if `architecture` has all sizes.

        `vocab_size` is the number of rows of the embedding table. Raises UserError if the source is
        a file that cannot be read.
        """
        del vocab_size
        if self.size is None:
            return None
        values = zip(self.size_settings, self.named_sizes[self.size], strict=False)
        return SizeSource("size", self.size, dict(values))

    def of_task(self, heads: HeadsSection) -> HeadsSection:
        """Returns a task's heads, with the pooler only if the task head reads it.

        The attention stays left to right if it is left to right in this model.
        """
        reads = heads.task in self.architecture_type.pooled_heads
        return heads.model_copy(update={"pooler": reads, "causal": self.heads.causal})

    @pydantic.model_validator(mode="after")
    def _read_pooler(self) -> ModelSection:
        found = {*self.heads.of_pretraining, self.heads.task}
        of_kind = {"next_sentence", *self.architecture_type.pooled_heads}
        if not self.heads.pooler and (readers := found & of_kind):
            allowed = f"true, because the head {min(readers)} of {self.kind} reads it"
            raise SettingError.wrong("model.pooler", "false", allowed, place="heads.pooler")
        return self

    @pydantic.model_validator(mode="after")
    def _one_size(self) -> ModelSection:
        if (source := ModelSection.size_source(self, vocab_size=0)) is not None:
            self._refuse_other_sizes(source)
        return self

    def _refuse_other_sizes(self, source: SizeSource) -> None:
        """Raises SettingError if `architecture` contradicts the sizes of a name or a file."""
        changed = self.architecture.model_dump(exclude_none=True)
        for name in SIZES:
            if name in changed and source.values.get(name, changed[name]) != changed[name]:
                found = f'"{source.found:.200}" ({name} {source.values[name]})'
                other = f"model.architecture.{name} is {changed[name]}"
                remedy = f"Set model.architecture={{}} or model.{source.key}=null."
                message = f"found {found}, but {other}. {remedy}"
                raise SettingError("model.two_sizes", message, place=source.key)

    def chosen(self, *, vocab_size: int) -> Iterator[tuple[str, str, object]]:
        """Yields the settings of the architecture that the section sets, without its defaults.

        ``("size", "hidden_size", 128)``: the key in the section, the setting, and its value. For
        `vocab_size` and errors, see `size_source`.
        """
        if (source := self.size_source(vocab_size=vocab_size)) is not None:
            yield from ((source.key, name, value) for name, value in source.values.items())
        for name, value in self.architecture.model_dump(exclude_none=True).items():
            yield f"architecture.{name}", name, value

    def settings_of_tokenizer(self, padding_id: int) -> Mapping[str, object]:
        """Returns the architecture's defaults for a tokenizer, whose padding has this id.

        Raises UserError if `architecture` contradicts them.
        """
        del padding_id
        return {}

    def resolve(self, *, vocab_size: int, padding_id: int | None = None) -> EncoderArchitecture:
        """Returns the architecture for a tokenizer with `vocab_size` pieces.

        The embedding has one row per piece, or `architecture.vocab_size` rows if that is set.
        `padding_id` is the id of the padding piece; None if the section has all settings.

        Raises:
            UserError: Sizes are missing or contradictory, there are fewer rows than pieces, the
                heads do not divide the hidden size, a file with sizes is unreadable, or a setting
                does not fit the tokenizer.
        """
        rows = self.architecture.vocab_size or vocab_size
        if rows < vocab_size:
            allowed = f"at least {vocab_size}, the tokenizer's pieces"
            place = "model.architecture.vocab_size"
            raise UserError.wrong("model.vocab_size", rows, allowed, place=place)
        values: dict[str, object] = {}
        if padding_id is not None:
            values |= self.settings_of_tokenizer(padding_id)
        if (source := self.size_source(vocab_size=rows)) is not None:
            try:
                self._refuse_other_sizes(source)
            except SettingError as error:
                raise error.at(f"model.{error.place}") from None
            values |= source.values
        values |= self.architecture.model_dump(exclude_none=True)
        values["vocab_size"] = rows
        if missing := sorted(key for key in SIZES if key not in values):
            remedy = f"Set model.size ({one_of(self.named_sizes)}) or these, or --init-from."
            message = f"{commas(missing)} missing. {remedy}"
            raise UserError("model.sizes_missing", message, place="model.architecture")
        return validate(self.architecture_type, values, source="", key="model.architecture")

    @classmethod
    def of(
        cls,
        architecture: EncoderArchitecture,
        *,
        pieces: int,
        execution: Execution,
        heads: HeadsSection,
    ) -> ModelSection:
        """Returns the section with all settings of an architecture.

        Omits `vocab_size` if it equals `pieces`, the number of pieces of the tokenizer.
        """
        implied = {"vocab_size"} if architecture.vocab_size == pieces else set[str]()
        settings = architecture.model_dump(exclude=implied)
        return cls(architecture=settings, execution=execution, heads=heads)
