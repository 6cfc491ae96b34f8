"""Settings of DeBERTa. Needs no JAX."""

import functools
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

import numpy as np
import pydantic

from bert_jax.errors import SettingError
from bert_jax.model.architecture import Activation, FactorisedArchitecture, PositionEmbedding
from bert_jax.model.section import ArchitectureChanges, ModelSection
from bert_jax.section import as_tuple

PositionTerm = Literal["c2p", "p2c"]
# pydantic's strict mode refuses lists for tuples behind the validator of `model`.
_Terms: TypeAlias = Annotated[tuple[PositionTerm, ...], pydantic.BeforeValidator(as_tuple)]


class DebertaArchitecture(FactorisedArchitecture):
    """Sizes and settings that determine the parameters and the function of DeBERTa.

    The defaults are the settings of DeBERTaV3-base (arXiv 2111.09543).
    """

    kind = "deberta"
    pooled_heads = frozenset({"sequence_classification", "multiple_choice"})
    dropout_settings = (*FactorisedArchitecture.dropout_settings, "pooler_dropout")
    relative_scores = True
    generator_ratios = (1.0, 0.5)

    type_vocab_size: int = pydantic.Field(default=0, ge=0, le=1 << 10)
    """Number of token types. With 0, tokens have no type."""
    position_embedding: PositionEmbedding = "none"
    """`none`: only attention knows positions. `learned`: a table of parameters, as in DeBERTaV2's
    `position_biased_input`."""
    position_buckets: int = pydantic.Field(default=256, ge=0, le=1 << 16)
    """Rows of the table of relative positions for one direction. Half of them are for one distance
    each, the others for ranges that grow with the distance. 0: each distance has its own row."""
    max_relative_positions: int | None = pydantic.Field(default=None, ge=2, le=1 << 20)
    """Longest distance. Longer ones share its row. Default: `max_position_embeddings`."""
    pos_att_type: _Terms = ("p2c", "c2p")
    """The terms of attention scores beside content to content. `c2p`: content to position, how a
    token's query fits a distance. `p2c`: position to content, how a distance fits a token's key."""
    share_att_key: bool = True
    """Whether relative positions have the projections of queries and keys, or their own."""
    norm_rel_ebd: Literal["layer_norm", "none"] = "layer_norm"
    """Whether the table of relative positions has a LayerNorm."""
    pooler_dropout: float = pydantic.Field(default=0.0, ge=0, lt=1)
    """Dropout rate before the pooler."""
    hidden_act: Activation = "gelu_erf"
    """Activation of the FFN, the MLM head and the replaced-token head."""
    layer_norm_eps: float = pydantic.Field(default=1e-7, gt=0)
    """Constant that is added to the variance in LayerNorm."""

    @property
    def decodes(self) -> bool:
        """Whether the last layer is an enhanced mask decoder, as generators may have."""
        return False

    @property
    def longest_distance(self) -> int:
        """The longest distance between tokens that has its own row or bucket."""
        return self.max_relative_positions or self.max_position_embeddings

    @property
    def span(self) -> int:
        """Rows of the table of relative positions for one direction."""
        return self.position_buckets or self.longest_distance

    @property
    def relative_rows(self) -> np.ndarray:
        """The row of the table for each distance, query minus key, int32 [2 · positions + 1].

        The distances are −positions to positions, where positions is `max_position_embeddings`.
        """
        return _rows(
            self.max_position_embeddings, self.span, self.position_buckets, self.longest_distance
        )

    @pydantic.field_validator("position_embedding")
    @classmethod
    def _as_released(cls, found: PositionEmbedding) -> PositionEmbedding:
        if found == "sinusoidal":
            raise SettingError.wrong("deberta.positions", found, "none, learned")
        return found

    @pydantic.model_validator(mode="after")
    def _some_ranges(self) -> Self:
        half, longest = self.position_buckets // 2, self.longest_distance
        far = self.max_position_embeddings > half + 1  # distances without a row of their own
        if self.position_buckets in (1, 2, 3) or (half and far and longest <= half + 1):
            found, allowed = self.position_buckets, f"0, or 4 to {max(4, 2 * longest - 3)}"
            raise SettingError.wrong("deberta.buckets", found, allowed, place="position_buckets")
        return self

    def forward_flops(
        self, *, seq_length: int, read: int | None = None, predictions: int = 0, pooled: int = 0
    ) -> float:
        """Returns the FLOPs of one row's forward pass, see `EncoderArchitecture`.

        A term of positions has a product with each row of the table that the distances of a row of
        tokens use. The projection of the table itself, once per batch, is not included.
        """
        base = super().forward_flops(
            seq_length=seq_length, read=read, predictions=predictions, pooled=pooled
        )
        distances = min(2 * seq_length, 2 * self.span)
        queries = (self.num_hidden_layers - 1) * seq_length + (read or seq_length)
        keys = self.num_hidden_layers * seq_length
        tokens = sum(queries if term == "c2p" else keys for term in self.pos_att_type)
        return base + 2.0 * tokens * distances * self.hidden_size


class DebertaGeneratorArchitecture(DebertaArchitecture):
    """The architecture of a generator."""

    enhanced_mask_decoder: bool = False
    """Whether the last layer is the decoder of DeBERTaV3's generator: masked tokens pass it twice,
    and start from their state plus their absolute position. Source: `EnhancedMaskDecoder` of
    Microsoft's DeBERTa, `masked_language_model.py`."""

    @property
    def decodes(self) -> bool:
        """Whether the last layer is an enhanced mask decoder."""
        return self.enhanced_mask_decoder

    @pydantic.model_validator(mode="after")
    def _one_table(self) -> Self:
        if self.decodes and self.position_embedding != "none":
            found, place = f"true with {self.position_embedding}", "enhanced_mask_decoder"
            allowed = "true with position_embedding: none"
            raise SettingError.wrong("deberta.mask_decoder", found, allowed, place=place)
        return self

    def forward_flops(
        self, *, seq_length: int, read: int | None = None, predictions: int = 0, pooled: int = 0
    ) -> float:
        """Returns the FLOPs of one row's forward pass, see `DebertaArchitecture`."""
        read = 2 * read if self.decodes and read is not None else read
        return super().forward_flops(
            seq_length=seq_length, read=read, predictions=predictions, pooled=pooled
        )


@functools.lru_cache
def _rows(positions: int, span: int, buckets: int, longest: int) -> np.ndarray:
    distances = np.arange(-positions, positions + 1)
    found = _log_buckets(distances, buckets, longest) if buckets else distances
    return np.clip(found + span, 0, 2 * span - 1).astype(np.int32)


def _log_buckets(distances: np.ndarray, buckets: int, longest: int) -> np.ndarray:
    """Returns the bucket of each distance: exact up to half of `buckets`, then logarithmic.

    In float32, as in Hugging Face's code: another precision rounds some distances into the next
    bucket. Source: `make_log_bucket_position` of Hugging Face transformers and Microsoft's DeBERTa.
    """
    half = buckets // 2
    if longest <= half + 1:  # all distances are exact
        return distances
    far = np.maximum(abs(distances), half - 1).astype(np.float32)
    scale = np.log(np.float32((longest - 1) / half))
    logs = np.ceil(np.log(far / np.float32(half)) / scale * np.float32(half - 1)) + half
    return np.where(abs(distances) <= half, distances, logs * np.sign(distances)).astype(np.int64)


class DebertaArchitectureChanges(ArchitectureChanges, of=DebertaArchitecture):
    """Settings of `DebertaArchitecture`, all optional."""


class DebertaSection(ModelSection):
    """DeBERTaV3: sizes from a name, other settings, heads and execution.

    ``model: {kind: deberta, size: base, architecture: {hidden_dropout_prob: 0.0}}``
    """

    architecture_type = DebertaArchitecture
    generator_type = DebertaGeneratorArchitecture
    # arXiv 2111.09543, and `rtd_*.json` of Microsoft's DeBERTa, `experiments/language_model`.
    named_sizes: ClassVar = {
        "xsmall": (12, 384, 6, 1536),
        "small": (6, 768, 12, 3072),
        "base": (12, 768, 12, 3072),
        "large": (24, 1024, 16, 4096),
    }

    kind: Literal["deberta"] = "deberta"
    """The encoder: `deberta`."""
    size: Literal["xsmall", "small", "base", "large"] | None = None
    """A released size of DeBERTaV3. Layers × hidden size × heads: xsmall 12 × 384 × 6, small 6 ×
    768 × 12, base 12 × 768 × 12, large 24 × 1,024 × 16."""
    architecture: DebertaArchitectureChanges = DebertaArchitectureChanges()
