"""The head of sparse encoders: weights of pieces, from the logits of the MLM head."""

from typing import TYPE_CHECKING, Any, Final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bert_jax.kernels.cross_entropy import NO_PIECE
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.cross_entropy import token_parts
from bert_jax.model.embedding_head import VectorHead
from bert_jax.model.section import Execution
from bert_jax.model.text_head import SparseHeadSection
from bert_jax.model.tied_embedding import shares_of
from bert_jax.parallel.sharding_rules import constrain

if TYPE_CHECKING:
    from bert_jax.model.encoder_model import EncoderModel

_MOST_TOKENS: Final = 4096  # of a device, whose logits are in memory


class SparseHead(VectorHead[SparseHeadSection]):
    """SPLADE: the largest logit of each piece over the tokens of a text. No parameters."""

    def __init__(
        self,
        *,
        settings: SparseHeadSection,
        architecture: EncoderArchitecture,
        execution: Execution,
    ) -> None:
        super().__init__(settings=settings, architecture=architecture, execution=execution)
        self.pieces = settings.width(architecture)

    def __call__(
        self,
        hidden_BLD: Float[Array, "batch length hidden"],
        segment_ids: Int[Array, "batch length"],
        *,
        model: "EncoderModel",
    ) -> Float[Array, "batch vocab"]:
        """Returns the weight of every piece. The padding of the vocabulary has the weight 0."""
        # Both functions rise, so they are applied to the largest logit alone.
        weights_BV = jnp.log1p(jax.nn.relu(_largest_logits(model, hidden_BLD, segment_ids > 0)))
        return jnp.log1p(weights_BV) if self.settings.activation == "log1p_relu" else weights_BV

    def cut(self, vectors: Float[Array, "batch vocab"]) -> Float[Array, "batch pieces"]:
        """Returns the `SparseHeadSection.top_k` largest weights, without the padding."""
        vectors = vectors[:, : self.pieces]
        if self.settings.top_k is None or self.settings.top_k >= self.pieces:
            return vectors
        largest, at = jax.lax.top_k(vectors, self.settings.top_k)
        none = jnp.zeros(self.pieces, vectors.dtype)
        return jax.vmap(lambda at, largest: none.at[at].set(largest))(at, largest)


def _largest_logits(
    model: "EncoderModel",
    hidden_BLD: Float[Array, "batch length hidden"],
    is_token_BL: Bool[Array, "batch length"],
) -> Float[Array, "batch vocab"]:
    """Returns the largest logit of each piece. Only one part of the tokens has logits in memory."""
    table_VD = model.encoder.table
    # Once for all parts.
    shares_SVD: Any = shares_of(table_VD, model.mlm.gradient_dtype)

    def part(largest_BV: Array, tokens: tuple[Array, Array]) -> tuple[Array, None]:
        hidden_BPD, is_token_BP = tokens
        rows_BPD = model.decoder_input(constrain(hidden_BPD, "batch", "length", "hidden"))
        found_BV = model.mlm.largest(rows_BPD, table_VD, shares_SVD, is_token_BP)
        return jnp.where(found_BV > largest_BV, found_BV, largest_BV), None

    tokens = hidden_BLD, is_token_BL
    none_BV = jnp.full((hidden_BLD.shape[0], table_VD.shape[0]), 2 * NO_PIECE)
    if not isinstance(hidden_BLD.shape[0], int):  # exported for any batch size
        return part(none_BV, tokens)[0]
    return jax.lax.scan(part, none_BV, token_parts(tokens, most=_MOST_TOKENS))[0]
