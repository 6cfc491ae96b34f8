"""Settings of RoBERTa. Needs no JAX."""

from collections.abc import Mapping
from typing import ClassVar, Literal

import pydantic

from bert_jax.errors import UserError
from bert_jax.model.architecture import Activation, PostNormArchitecture
from bert_jax.model.section import ArchitectureChanges, ModelSection


class RobertaArchitecture(PostNormArchitecture):
    """Sizes and settings that determine the parameters and the function of RoBERTa.

    The defaults are the settings of RoBERTa-base (arXiv 1907.11692).
    """

    kind = "roberta"
    fixed_head_act = "gelu_erf"
    pooled_heads = frozenset({"multiple_choice"})

    type_vocab_size: int = pydantic.Field(default=1, ge=1, le=1 << 10)
    """Number of token types. With 1, both spans have the same type."""
    hidden_act: Activation = "gelu_erf"
    """Activation of the FFN. The MLM head always has `gelu_erf`."""
    layer_norm_eps: float = pydantic.Field(default=1e-5, gt=0)
    """Constant that is added to the variance in LayerNorm."""
    padding_position: int = pydantic.Field(default=1, ge=0, le=1 << 10)
    """Row of the position table for padding. The first token of an example has the next row, and
    earlier rows are not used. Hugging Face's models need the tokenizer's padding id, which is the
    default in pretraining."""

    @property
    def first_position(self) -> int:
        """Row of the position table for the first token. The rows before it are not used."""
        return self.padding_position + 1


class RobertaArchitectureChanges(ArchitectureChanges, of=RobertaArchitecture):
    """Settings of `RobertaArchitecture`, all optional."""


class RobertaSection(ModelSection):
    """RoBERTa, XLM-R or CamemBERT: sizes from a name, other settings, heads and execution.

    ``model: {kind: roberta, size: base, architecture: {hidden_dropout_prob: 0.0}}``

    XLM-R and CamemBERT are the same network with the vocabulary of another tokenizer.
    """

    architecture_type = RobertaArchitecture
    # arXiv 1907.11692, table 9.
    named_sizes: ClassVar = {
        "base": (12, 768, 12, 3072),
        "large": (24, 1024, 16, 4096),
    }

    kind: Literal["roberta"] = "roberta"
    """The encoder: `roberta`."""
    size: Literal["base", "large"] | None = None
    """A released size. Layers × hidden size × heads × FFN: base 12 × 768 × 12 × 3,072, large 24 ×
    1,024 × 16 × 4,096."""
    architecture: RobertaArchitectureChanges = RobertaArchitectureChanges()

    def settings_of_tokenizer(self, padding_id: int) -> Mapping[str, object]:
        """Returns the position of padding, see `ModelSection`."""
        check_padding(self.architecture.model_dump()["padding_position"], padding_id)
        return {"padding_position": padding_id}


def check_padding(position: int | None, padding_id: int) -> None:
    """Raises UserError if the position of padding is set, but is not the id of padding."""
    if position not in (None, padding_id):
        allowed = f"{padding_id}, the padding's token id, as in Hugging Face's models"
        place = "model.architecture.padding_position"
        raise UserError.wrong("roberta.padding_position", position, allowed, place=place)
