"""Text heads that encode every text by itself, and the head of sentence embeddings."""

import abc
import math
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.initial import Constant
from bert_jax.model.layers import Dense, Linear, param
from bert_jax.model.pooling import pooled_states, position_of, unit_length
from bert_jax.model.section import Execution
from bert_jax.model.text_head import PoolingSection, VectorHeadSection

if TYPE_CHECKING:
    from bert_jax.model.encoder_model import EncoderModel

SettingsT = TypeVar("SettingsT", bound=VectorHeadSection)


class VectorHead(nnx.Module, Generic[SettingsT]):
    """From a text's states to what a search compares, in float32."""

    layer: ClassVar[type[Linear]] = Dense
    """The class of the projection `dense`, if the settings have one."""

    def __init__(
        self, *, settings: SettingsT, architecture: EncoderArchitecture, execution: Execution
    ) -> None:
        self.settings = settings
        if (width := settings.parameters.get("dense")) is not None:
            precise = execution.model_copy(update={"dtype": "float32"})
            size, axes = (architecture.hidden_size, width), ("embed", "classes")
            self.dense = self.layer(size, axes, architecture=architecture, execution=precise)

    def read_positions(
        self, segment_ids: Int[Array, "batch length"]
    ) -> Int[Array, "batch 1"] | None:
        """Returns the position of the only token that the head reads, or None for all tokens."""
        del segment_ids
        return None

    @abc.abstractmethod
    def __call__(
        self,
        hidden_BLD: Float[Array, "batch length hidden"],
        segment_ids: Int[Array, "batch tokens"],
        *,
        model: "EncoderModel",
    ) -> Float[Array, "batch ..."]:
        """Returns the result of each text, from all states or those at `read_positions`.

        `model` is the model of the head, for heads that use other heads.
        """

    def cut(self, vectors: Float[Array, "batch ..."]) -> Float[Array, "batch ..."]:
        """Returns the part of the results that remains after training."""
        return vectors

    def compare(
        self, queries: Float[Array, "queries ..."], passages: Float[Array, "passages ..."]
    ) -> Float[Array, "queries passages"]:
        """Returns the similarity of every query with every passage."""
        return dot_products(queries, passages)


def dot_products(
    queries: Float[Array, "queries width"], passages: Float[Array, "passages width"]
) -> Float[Array, "queries passages"]:
    """Returns the dot product of every query with every passage."""
    # A TPU multiplies float32 matrices in bfloat16 by default: an error of 0.004.
    return jnp.matmul(queries, passages.T, precision=jax.lax.Precision.HIGHEST)


class EmbeddingHead(VectorHead[PoolingSection]):
    """Pooling, a linear layer in float32, and a learned temperature."""

    def __init__(
        self,
        *,
        settings: PoolingSection,
        architecture: EncoderArchitecture,
        execution: Execution,
    ) -> None:
        super().__init__(settings=settings, architecture=architecture, execution=execution)
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
        *,
        model: "EncoderModel",
    ) -> Float[Array, "batch width"]:
        """Returns the vector of each text, see `VectorHead`."""
        del model
        if hidden_BLD.shape[1] == 1 and self.settings.pool != "mean":
            vectors_BD = hidden_BLD[:, 0].astype("float32")
        else:
            vectors_BD = pooled_states(hidden_BLD, segment_ids, pool=self.settings.pool)
        if self.settings.projection is not None:
            vectors_BD = self.dense(vectors_BD)
        return unit_length(vectors_BD) if self.settings.normalize else vectors_BD

    def cut(self, vectors: Float[Array, "batch width"]) -> Float[Array, "batch dimensions"]:
        """Returns the first numbers of vectors, see `PoolingSection.dimensions`."""
        return vectors[:, : self.settings.dimensions]
