"""DeBERTa's encoder: BERT's layers with disentangled attention.

Shape suffixes: B batch, L length, D hidden size, R rows of the table of relative positions.
"""

from typing import Any

from jaxtyping import Array, Int

from bert_jax.encoders.deberta.attention import DisentangledAttention, Seen
from bert_jax.encoders.deberta.section import DebertaArchitecture
from bert_jax.model.add_norm import embedding_norm
from bert_jax.model.dropout import dropout
from bert_jax.model.embeddings import Embeddings
from bert_jax.model.initial import TruncatedNormal
from bert_jax.model.layers import LayerNorm, Linear, param
from bert_jax.model.post_norm import PostNormEncoder, PostNormLayer
from bert_jax.model.section import Execution
from bert_jax.parallel.sharding_rules import constrain


class DebertaEmbeddings(Embeddings):
    """Embeddings whose projection to the width of the layers comes before LayerNorm."""

    def __init__(self, *, architecture: DebertaArchitecture, execution: Execution) -> None:
        super().__init__(architecture=architecture, execution=execution)
        if self.projects:
            parts: Any = {"architecture": architecture, "execution": execution}
            size = architecture.embedding_width, architecture.hidden_size
            self.projection = Linear(size, ("embed", "pooled"), **parts)
            self.norm = LayerNorm(**parts)

    def finished(self, x_BLD: Array, *, dropout_key: Array | None) -> Array:
        """Returns the input of the first layer, from the sum of the embeddings."""
        if self.projects:
            x_BLD = self.projection(x_BLD)
        x_BLD = embedding_norm(x_BLD, norm=self.norm, training=dropout_key is not None)
        x_BLD = constrain(x_BLD, "batch", "length", "hidden")
        return dropout(x_BLD, self.dropout_rate, dropout_key)


class DebertaLayer(PostNormLayer):
    """A post-LayerNorm layer with disentangled attention."""

    attention_type = DisentangledAttention


class DebertaEncoder(PostNormEncoder):
    """Embeddings, layers, and the table of relative positions that all layers share."""

    embeddings_type = DebertaEmbeddings
    layer_type = DebertaLayer

    def __init__(
        self, *, architecture: DebertaArchitecture, execution: Execution, causal: bool
    ) -> None:
        """Creates abstract parameters. For `causal`, see `HeadsSection`."""
        super().__init__(architecture=architecture, execution=execution, causal=causal)
        normal = TruncatedNormal(architecture.initializer_range)
        size = 2 * architecture.span, architecture.hidden_size
        self.relative = param(size, ("positions", "embed"), normal)
        if architecture.norm_rel_ebd == "layer_norm":
            self.relative_norm = LayerNorm(architecture=architecture, execution=execution)
        self.dtype = execution.dtype

    def seen(self, segment_ids: Int[Array, "batch length"]) -> Seen:
        """Returns the segments and the normalised table of relative positions."""
        table_RD = self.relative[...]
        if hasattr(self, "relative_norm"):
            table_RD = self.relative_norm(table_RD)
        return Seen(segment_ids, table_RD.astype(self.dtype))
