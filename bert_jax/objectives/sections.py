"""The settings of objectives. Needs no JAX."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, TypeAlias

import pydantic

from bert_jax.data.dataset.provenance import PairingKind
from bert_jax.data.rows.masking import MaskingSection
from bert_jax.data.rows.masking_transform import MaskingTransform
from bert_jax.encoders.registry import SECTIONS
from bert_jax.errors import SettingError, UserError, commas
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import SIZES, HeadsSection
from bert_jax.section import ModelPathText, Section, as_tuple
from bert_jax.task import RowTransform
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.validation import validate

PairTask = Literal["nsp", "sop"]
WITHOUT_PAIRS: Final[tuple[PairingKind, ...]] = ("full_sentences", "doc_sentences")


class ObjectiveSection(Section):
    """The settings of an objective, and the facts about it that need no JAX.

    Attributes:
        kind: name of the objective.
    """

    loss: ClassVar[str] = "masked_lm"
    """The module of the loss. Its function `make` returns the objective of a section."""
    heads: ClassVar[HeadsSection]
    """The heads that the objective trains. The model of a run has only these heads."""
    pairings: ClassVar[tuple[PairingKind, ...]]
    """The allowed pairing kinds of datasets."""
    pair: ClassVar[PairTask | None] = None
    """The task of the pair head, if the objective trains it."""
    has_second_model: ClassVar[bool] = False
    """Whether the objective needs a model beside the run's. All phases then have this objective."""

    if TYPE_CHECKING:  # a subclass has one kind
        kind: Any
    else:
        kind: str

    @property
    def evaluated_pairings(self) -> tuple[PairingKind, ...]:
        """The allowed pairing kinds of datasets in an evaluation."""
        return self.pairings

    def check_sizes(self, architecture: EncoderArchitecture) -> None:
        """Raises UserError if the model's sizes do not fit the objective. Needs no JAX."""
        del architecture


class MaskedObjectiveSection(ObjectiveSection):
    """A masked language model with an optional pair task. Any loss works with any masking.

    Attributes:
        masking: masking of training rows.
    """

    masking: MaskingSection = MaskingSection()

    @property
    def evaluated_pairings(self) -> tuple[PairingKind, ...]:
        """The allowed pairing kinds of datasets in an evaluation: those without pairs too."""
        return tuple(dict.fromkeys((*self.pairings, *WITHOUT_PAIRS)))


def masked_rows(
    tokenizer: Tokenizer,
    masking: MaskingSection,
    *,
    seq_length: int,
    max_predictions: int | None,
    max_examples: int,
    pairs: bool,
) -> RowTransform:
    """Returns the transform to masked rows, see `Objective.features`.

    If `max_predictions` is None, `masking` computes it. `pairs` is whether the rows have the arrays
    of a pair task.
    """
    if max_predictions is not None:
        masking = masking.model_copy(update={"max_predictions": max_predictions})
    return MaskingTransform.from_tokenizer(
        tokenizer, seq_length=seq_length, masking=masking, max_examples=max_examples, pairs=pairs
    )


class BertObjectiveSection(MaskedObjectiveSection):
    """Masked language model and next sentence prediction (arXiv 1810.04805, section 3.1)."""

    heads = HeadsSection()
    pairings = ("nsp",)
    pair = "nsp"

    kind: Literal["bert"] = "bert"


class RobertaObjectiveSection(MaskedObjectiveSection):
    """Masked language model alone (arXiv 1907.11692, section 4.2)."""

    heads = HeadsSection(pooler=False, next_sentence=False)
    pairings = WITHOUT_PAIRS

    kind: Literal["roberta"] = "roberta"


class SopObjectiveSection(MaskedObjectiveSection):
    """Masked language model and sentence order prediction (arXiv 1909.11942, section 3.1).

    ``objective: {kind: sop, masking: {unit: ngram}}`` is the objective of ALBERT.
    """

    heads = HeadsSection()
    pairings = ("sop",)
    pair = "sop"

    kind: Literal["sop"] = "sop"


class CausalObjectiveSection(ObjectiveSection):
    """Every token predicts the next token of its example, with left-to-right attention.

    The prediction reads the MLM head. With BERT, this is "LTR & No NSP" of arXiv 1810.04805,
    section 5.1.
    """

    loss = "causal"

    heads = HeadsSection(pooler=False, next_sentence=False, causal=True)
    pairings = WITHOUT_PAIRS

    kind: Literal["causal"] = "causal"


EmbeddingSharing: TypeAlias = Literal["shared", "gradient_disentangled", "none"]

# pydantic's strict mode refuses lists for tuples behind the validator of `objective`.
_Tables: TypeAlias = Annotated[
    tuple[Literal["word", "position", "type"], ...],
    pydantic.Field(min_length=1),
    pydantic.BeforeValidator(as_tuple),
]

LEAST_WIDTH: Final = 8
"""Lowest hidden size of a generator. LayerNorm turns a single number into 0."""

ELECTRA_MASKING: Final = MaskingSection(replace_with_mask=0.85, replace_with_random=0.0)


class GeneratorSection(Section):
    """The generator: a smaller encoder with an MLM head.

    The default of a size is `size` times the model's, as in google-research/electra.
    """

    kind: str | None = None
    """The encoder. Default: the model's."""
    size: float | None = pydantic.Field(default=None, gt=0, le=1)
    """Ratio of the generator's hidden size, heads and FFN to the model's. The authors of ELECTRA
    use 1/4 for small and large, and 1/3 for base (arXiv 2003.10555, table 6). Default: 0.25 for
    `electra` and `albert`, whose embeddings have a width of their own, otherwise 1."""
    num_hidden_layers: int | None = pydantic.Field(default=None, ge=1, le=1000)
    """Number of layers. Default: as many as the model has for `electra` and `albert`, otherwise
    half as many, as in DeBERTaV3."""
    hidden_size: int | None = pydantic.Field(default=None, ge=1, le=1 << 16)
    """Width of hidden states."""
    num_attention_heads: int | None = pydantic.Field(default=None, ge=1, le=1 << 10)
    """Number of attention heads per layer. It must divide `hidden_size`."""
    intermediate_size: int | None = pydantic.Field(default=None, ge=1, le=1 << 18)
    """Width of the hidden layer of the FFN."""
    architecture: dict[str, Any] = pydantic.Field(default_factory=dict)
    """Other settings of the generator's architecture. Default: the model's, or the defaults of
    `kind` if it is another encoder. A generator of `kind: deberta` also has
    `enhanced_mask_decoder`: whether its last layer is DeBERTaV3's, which reads the absolute
    positions of masked tokens."""

    @pydantic.field_validator("kind")
    @classmethod
    def _known(cls, kind: str | None) -> str | None:
        if kind not in (None, *SECTIONS):
            raise SettingError.unknown("electra.generator_kind", kind, SECTIONS)
        return kind

    def of_model(self, model: EncoderArchitecture) -> EncoderArchitecture:
        """Returns the generator's architecture, with embeddings as wide as the model's if possible.

        Raises UserError if it is too narrow, or a setting is wrong.
        """
        section = SECTIONS[self.kind or model.kind]
        chosen = section.generator_type or section.architecture_type
        ratio, depth = chosen.generator_ratios
        ratio = self.size or ratio
        ratios = dict.fromkeys(SIZES, ratio) | {"num_hidden_layers": depth}
        sizes = {
            name: getattr(self, name) or max(1, round(each * getattr(model, name)))
            for name, each in ratios.items()
        }
        if (width := sizes["hidden_size"]) < LEAST_WIDTH:
            found, allowed, place = width, LEAST_WIDTH, "objective.generator.hidden_size"
            if self.hidden_size is None:
                found, place = f"{ratio} (width {width})", "objective.generator.size"
                allowed = math.ceil(1000 * LEAST_WIDTH / model.hidden_size) / 1000
            raise UserError.wrong("electra.generator_width", found, allowed, place=place)
        common = None if chosen.kind == model.kind else {"vocab_size", "max_position_embeddings"}
        values = model.model_dump(mode="json", include=common) | sizes
        if (setting := chosen.embedding_width_setting) is not None:
            values[setting] = model.embedding_width
        try:
            found = validate(chosen, values | self.architecture, source="")
        except UserError as error:
            above = "architecture." if error.place in self.architecture else ""
            raise error.with_place(f"objective.generator.{above}{error.place}") from error
        if found.vocab_size != model.vocab_size:
            raise UserError(
                "electra.generator_vocab_size",
                f"found {found.vocab_size}, but the model has {model.vocab_size} pieces",
                place="objective.generator.architecture.vocab_size",
            )
        return found


class ElectraObjectiveSection(ObjectiveSection):
    """Replaced token detection (arXiv 2003.10555).

    A generator predicts masked tokens. Tokens that are drawn from its predictions replace the
    masked ones, and the model tells for every token whether it was replaced. The model is exported
    and fine-tuned; the generator is only in the checkpoints of pretraining.
    """

    loss = "electra"

    heads = HeadsSection(pooler=False, mlm=False, next_sentence=False, replaced_tokens=True)
    pairings = (*WITHOUT_PAIRS, "nsp", "sop")
    has_second_model = True

    kind: Literal["electra"] = "electra"
    masking: MaskingSection = ELECTRA_MASKING
    """Masking of the generator's rows. By default, 85% of the predicted tokens become [MASK] and
    the others stay, as in google-research/electra."""
    generator: GeneratorSection = GeneratorSection()
    """The generator."""
    embedding_sharing: EmbeddingSharing = "shared"
    """How the model gets the embeddings of `shared_embeddings`. `shared`: from tables that both
    losses train. `gradient_disentangled`: tables that only the generator's loss trains, plus deltas
    from zero that only the model's loss trains (DeBERTaV3, arXiv 2111.09543, section 3.3). `none`:
    from tables of its own."""
    shared_embeddings: _Tables = ("word", "position", "type")
    """The embeddings that generator and model share, see `embedding_sharing`. A table is shared if
    both networks have it with the same shape."""
    weight: float = pydantic.Field(default=50.0, ge=0)
    """Weight of the loss of the model; the weight of the generator's loss is 1."""

    def check_sizes(self, architecture: EncoderArchitecture) -> None:
        """Raises UserError if the generator is wrong, or cannot share the embeddings."""
        generator = self.generator.of_model(architecture)
        if self.embedding_sharing == "none":
            return
        widths = generator.embedding_width, architecture.embedding_width
        if widths[0] != widths[1]:
            raise UserError(
                "electra.sharing_width",
                f"found {self.embedding_sharing}, but widths are {commas(widths[:2])}. Use none.",
                place="objective.embedding_sharing",
            )
        both = generator.embedding_tables.keys() & architecture.embedding_tables.keys()
        if not both & set(self.shared_embeddings):
            raise UserError(
                "electra.shared_embeddings",
                f"found {commas(self.shared_embeddings)}, allowed: {commas(sorted(both))}",
                place="objective.shared_embeddings",
            )


# pydantic's strict mode refuses lists for tuples behind the validator of `objective`.
_Layers: TypeAlias = Annotated[
    Literal["every_kth"] | tuple[int, ...],
    pydantic.BeforeValidator(lambda found: tuple(found) if isinstance(found, list) else found),
]


class DistillObjectiveSection(ObjectiveSection):
    """Distillation of a masked language model (arXiv 1910.01108).

    ``objective: {kind: distill, teacher: runs/bert}``

    The default weights and temperature are from DistilBERT's training script. The teacher must
    have the student's tokenizer and an MLM head; it may be any encoder.
    """

    loss = "distill"

    heads = HeadsSection(pooler=False, next_sentence=False)
    pairings = (*WITHOUT_PAIRS, "nsp", "sop")
    has_second_model = True

    kind: Literal["distill"] = "distill"
    masking: MaskingSection = MaskingSection()
    """Masking of training rows."""
    teacher: ModelPathText
    """A run directory, a Hugging Face or google-research/bert directory, or a hub model such as
    `google-bert/bert-base-uncased` (append `@REVISION` to pin it). Its parameters do not change."""
    initial_layers: _Layers | None = "every_kth"
    """The teacher's layers from which the student's layers start: numbers from 0, or `every_kth`
    (0, 2, 4, … for half as many layers). The student also starts from the teacher's embeddings and
    MLM head. null: random initialization. `--init-from` replaces this setting."""
    temperature: float = pydantic.Field(default=2.0, gt=0)
    """Temperature of both softmaxes in the soft-target loss."""
    soft_weight: float = pydantic.Field(default=5.0, ge=0)
    """Weight of the soft-target loss: temperature² times the Kullback-Leibler divergence of the
    student's predictions from the teacher's, averaged over masked tokens."""
    mlm_weight: float = pydantic.Field(default=2.0, ge=0)
    """Weight of the MLM loss."""
    cosine_weight: float = pydantic.Field(default=1.0, ge=0)
    """Weight of 1 − the cosine of the last hidden states, averaged over tokens. If it is above 0,
    student and teacher must have the same hidden size."""
