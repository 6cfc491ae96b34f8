"""The head of sentence embeddings: from a text's states to its vector."""

import math

from flax import nnx
from jaxtyping import Array, Float, Int

from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.initial import Constant
from bert_jax.model.layers import Dense, param
from bert_jax.model.pooling import pooled_states, position_of, unit_length
from bert_jax.model.section import Execution
from bert_jax.model.text_head import PoolingSection


class EmbeddingHead(nnx.Module):
    """Pooling, a linear layer in float32, and a learned temperature."""

    def __init__(
        self,
        *,
        settings: PoolingSection,
        architecture: EncoderArchitecture,
        execution: Execution,
    ) -> None:
        self.settings = settings
        if settings.projection is not None:
            precise = execution.model_copy(update={"dtype": "float32"})
            size, axes = (architecture.hidden_size, settings.projection), ("embed", "classes")
            self.dense = Dense(size, axes, architecture=architecture, execution=precise)
        if settings.temperature is not None:
            # The log of 1/temperature. Parameters named "scale" have no weight decay.
            self.scale = param((1,), ("classes",), Constant(-math.log(settings.temperature)))

    def read_positions(
        self, segment_ids: Int[Array, "batch length"]
    ) -> Int[Array, "batch 1"] | None:
        """Returns the position of the only token that the head reads, or None for all tokens."""
        return position_of(self.settings.pool, segment_ids)

    def __call__(
        self,
        hidden_BLD: Float[Array, "batch length hidden"],
        segment_ids: Int[Array, "batch tokens"],
    ) -> Float[Array, "batch width"]:
        """Returns the float32 vector of each text, from all states or those at `read_positions`.

        Vectors are not cut to `PoolingSection.dimensions`, because training needs all numbers.
        """
        if hidden_BLD.shape[1] == 1 and self.settings.pool != "mean":
            vectors_BD = hidden_BLD[:, 0].astype("float32")
        else:
            vectors_BD = pooled_states(hidden_BLD, segment_ids, pool=self.settings.pool)
        if self.settings.projection is not None:
            vectors_BD = self.dense(vectors_BD)
        return unit_length(vectors_BD) if self.settings.normalize else vectors_BD
