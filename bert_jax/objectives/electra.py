"""The objective of ELECTRA: a generator replaces tokens, and the model finds them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

import pydantic

from bert_jax.data.rows.masking import MaskingSection
from bert_jax.errors import UserError
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.objectives.section import WITHOUT_PAIRS, ObjectiveSection
from bert_jax.section import Section, as_tuple
from bert_jax.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bert_jax.task import Objective

EmbeddingSharing: TypeAlias = Literal["shared", "gradient_disentangled", "none"]

# pydantic's strict mode refuses lists for tuples behind the validator of `objective`.
_Tables: TypeAlias = Annotated[
    tuple[Literal["word", "position", "type"], ...],
    pydantic.Field(min_length=1),
    pydantic.BeforeValidator(as_tuple),
]

LEAST_WIDTH: Final = 8
"""Lowest hidden size of a generator. LayerNorm leaves nothing of a single number."""

ELECTRA_MASKING: Final = MaskingSection(replace_with_mask=0.85, replace_with_random=0.0)


class GeneratorSection(Section):
    """The sizes of the generator, a smaller encoder of the same kind with an MLM head.

    The default of a size is `size` times the model's, as in google-research/electra.
    """

    size: float = pydantic.Field(default=0.25, gt=0, le=1)
    """Ratio of the generator's hidden size, heads and FFN to the model's. The authors use 1/4 for
    small and large, and 1/3 for base (arXiv 2003.10555, table 6)."""
    num_hidden_layers: int | None = pydantic.Field(default=None, ge=1, le=1000)
    """Number of layers. Default: as many as the model has."""
    hidden_size: int | None = pydantic.Field(default=None, ge=1, le=1 << 16)
    """Width of hidden states."""
    num_attention_heads: int | None = pydantic.Field(default=None, ge=1, le=1 << 10)
    """Number of attention heads per layer. It must divide `hidden_size`."""
    intermediate_size: int | None = pydantic.Field(default=None, ge=1, le=1 << 18)
    """Width of the hidden layer of the FFN."""

    def architecture(self, model: EncoderArchitecture) -> EncoderArchitecture:
        """Returns the generator's architecture. Its embeddings are as wide as the model's.

        Raises UserError if it is too narrow, or the heads do not divide the hidden size.
        """
        sizes = {
            name: getattr(self, name) or max(1, round(self.size * getattr(model, name)))
            for name in ("hidden_size", "num_attention_heads", "intermediate_size")
        }
        depth = self.num_hidden_layers or model.num_hidden_layers
        if (width := sizes["hidden_size"]) < LEAST_WIDTH:
            least = math.ceil(1000 * LEAST_WIDTH / model.hidden_size) / 1000
            by_ratio = self.hidden_size is None
            raise UserError(
                "electra.generator_width",
                f"found {self.size if by_ratio else width}, which makes a generator of hidden "
                f"size {width}. Use at least {least if by_ratio else LEAST_WIDTH}, for a hidden "
                f"size of {LEAST_WIDTH}.",
                place=f"objective.generator.{'size' if by_ratio else 'hidden_size'}",
            )
        if sizes["hidden_size"] % sizes["num_attention_heads"]:
            raise UserError(
                "electra.generator_heads",
                f"found {sizes['num_attention_heads']}, which does not divide the generator's "
                f"hidden size {sizes['hidden_size']}",
                place="objective.generator.num_attention_heads",
            )
        width = model.embedding_width
        return model.with_changes({**sizes, "num_hidden_layers": depth, "embedding_size": width})


class ElectraObjectiveSection(ObjectiveSection):
    """Replaced token detection (arXiv 2003.10555).

    A generator predicts masked tokens. Tokens that are drawn from its predictions replace the
    masked ones, and the model tells for every token whether it was replaced. The model is exported
    and fine-tuned; the generator is only in the checkpoints of pretraining.
    """

    heads = HeadsSection(pooler=False, mlm=False, next_sentence=False, replaced_tokens=True)
    pairings = (*WITHOUT_PAIRS, "nsp", "sop")
    has_second_model = True

    kind: Literal["electra"] = "electra"
    masking: MaskingSection = ELECTRA_MASKING
    """Masking of the generator's rows. By default, 85% of the predicted tokens become [MASK] and
    the others stay, as in google-research/electra."""
    generator: GeneratorSection = GeneratorSection()
    """The sizes of the generator."""
    embedding_sharing: EmbeddingSharing = "shared"
    """How the model gets the embeddings of `shared_embeddings`. `shared`: from tables that both
    losses train. `gradient_disentangled`: tables that only the generator's loss trains, plus deltas
    from zero that only the model's loss trains (DeBERTaV3, arXiv 2111.09543, section 3.3). `none`:
    from tables of its own."""
    shared_embeddings: _Tables = ("word", "position", "type")
    """The embeddings that generator and model share, see `embedding_sharing`."""
    weight: float = pydantic.Field(default=50.0, ge=0)
    """Weight of the loss of the model; the weight of the generator's loss is 1."""

    def check_sizes(self, architecture: EncoderArchitecture) -> None:
        """Raises UserError if the generator's sizes are wrong."""
        self.generator.architecture(architecture)

    def make(
        self, *, architecture: EncoderArchitecture, execution: Execution, tokenizer: Tokenizer
    ) -> Objective:
        """Returns the objective for a model. Imports JAX."""
        from bert_jax.objectives.replaced_token_detection import ReplacedTokenDetection

        return ReplacedTokenDetection(
            architecture=architecture,
            generator=self.generator.architecture(architecture),
            execution=execution,
            heads=self.heads,
            embedding_sharing=self.embedding_sharing,
            shared_embeddings=self.shared_embeddings,
            weight=self.weight,
            masking=self.masking,
            tokenizer=tokenizer,
        )
