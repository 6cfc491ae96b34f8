"""DeBERTa's encoder: BERT's layers with disentangled attention.

Shape suffixes: B batch, L length, D hidden size, R rows of the table of relative positions.
"""

from collections.abc import Mapping
from typing import Any

import jax
from jaxtyping import Array, Float, Int

from bert_jax.encoders.deberta.attention import DisentangledAttention, Seen
from bert_jax.encoders.deberta.section import DebertaArchitecture
from bert_jax.model.add_norm import embedding_norm
from bert_jax.model.dropout import dropout
from bert_jax.model.embeddings import Embeddings
from bert_jax.model.initial import TruncatedNormal
from bert_jax.model.layers import LayerNorm, Linear, gather_positions, param
from bert_jax.model.post_norm import LayerDropout, PostNormEncoder, PostNormLayer
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
        if architecture.decodes:  # only the decoder reads it
            size = architecture.max_position_embeddings, architecture.hidden_size
            normal = TruncatedNormal(architecture.initializer_range)
            self.position = param(size, ("positions", "embed"), normal)

    def finished(self, x_BLD: Array, *, dropout_key: Array | None) -> Array:
        """Returns the input of the first layer, from the sum of the embeddings."""
        if self.projects:
            x_BLD = self.projection(x_BLD)
        x_BLD = embedding_norm(x_BLD, norm=self.norm, training=dropout_key is not None)
        x_BLD = constrain(x_BLD, "batch", "length", "hidden")
        return dropout(x_BLD, self.dropout_rate, dropout_key)


class DebertaLayer(PostNormLayer):
    """A post-LayerNorm layer with disentangled attention.

    It can be an enhanced mask decoder. Then each query passes it twice, first with its absolute
    position. Both passes compute keys and values from the layer's input.
    """

    attention_type = DisentangledAttention
    attention: DisentangledAttention

    def __init__(
        self, *, architecture: DebertaArchitecture, execution: Execution, causal: bool
    ) -> None:
        super().__init__(architecture=architecture, execution=execution, causal=causal)
        self.decodes = architecture.decodes

    def __call__(
        self,
        x_BLD: Float[Array, "batch length hidden"],
        seen: Seen,
        *,
        dropout: Any,
        queries_BQ: Int[Array, "batch queries"] | None = None,
    ) -> Float[Array, "batch queries hidden"]:
        """Returns the states at the positions `queries_BQ`, see `PostNormLayer`."""
        if queries_BQ is None or not self.decodes:
            return super().__call__(x_BLD, seen, dropout=dropout, queries_BQ=queries_BQ)
        keys_and_values = self.attention.keys_and_values(x_BLD)
        x_BQD = gather_positions(x_BLD, queries_BQ) + seen.absolute(queries_BQ)
        for each in dropout or (LayerDropout(None, None, None),) * 2:
            attended = self.attention.decoded(
                x_BQD, keys_and_values, seen, dropout=each.core, queries_BQ=queries_BQ
            )
            x_BQD = self.from_attended(x_BQD, attended, each)
        return x_BQD

    def dropout_of(self, keys: Array, segment_ids: Array, queries_BQ: Array | None = None) -> Any:
        """Returns the dropout of a layer, see `PostNormLayer`, or of both passes of a decoder."""
        if queries_BQ is None or not self.decodes:
            return super().dropout_of(keys, segment_ids, queries_BQ)
        of_pass, passes = super().dropout_of, jax.vmap(jax.random.split)(keys)
        return tuple(of_pass(passes[:, at], segment_ids, queries_BQ) for at in (0, 1))


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
        self.decodes, self.dtype = architecture.decodes, execution.dtype

    def seen(self, batch: Mapping[str, Array]) -> Seen:
        """Returns segments and positions. The table of relative positions is normalised."""
        table_RD = self.relative[...]
        if hasattr(self, "relative_norm"):
            table_RD = self.relative_norm(table_RD)
        seen = Seen(batch["segment_ids"], table_RD.astype(self.dtype))
        if not self.decodes:
            return seen
        table_PD = self.embeddings.position[...].astype(self.dtype)
        return seen._replace(table_PD=table_PD, position_ids=batch.get("position_ids"))
