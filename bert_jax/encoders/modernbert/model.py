"""ModernBERT with the heads of a checkpoint."""

from flax import nnx
from jaxtyping import Array, Float

from bert_jax.encoders.modernbert.section import ModernBertArchitecture
from bert_jax.model.dropout import dropout
from bert_jax.model.heads import MlmDecoder
from bert_jax.model.layers import ACTIVATIONS, Linear, ScaledNorm
from bert_jax.model.pre_norm_model import PreNormModel, pre_norm_groups
from bert_jax.model.section import Execution, HeadsSection


class PredictionHead(nnx.Module):
    """Dense, activation, LayerNorm: below the decoder and below a task's head."""

    def __init__(self, *, architecture: ModernBertArchitecture, execution: Execution) -> None:
        parts = {"architecture": architecture, "execution": execution}
        size, axes = (architecture.hidden_size,) * 2, ("embed", "pooled")
        self.dense = Linear(size, axes, deviation=architecture.output_range, **parts)
        self.norm = ScaledNorm(**parts)
        self.activation = ACTIVATIONS[architecture.head_act]

    def __call__(self, x: Float[Array, "*rows hidden"]) -> Float[Array, "*rows hidden"]:
        """Returns the rows that a decoder or a task's head reads."""
        return self.norm(self.activation(self.dense(x)))


class ModernBert(PreNormModel):
    """ModernBERT with the heads of a `HeadsSection` (arXiv 2412.13663).

    The MLM head and the task head read the same prediction head.
    """

    mlm_head = MlmDecoder

    groups = pre_norm_groups(first_normed=1)

    def __init__(
        self, *, architecture: ModernBertArchitecture, execution: Execution, heads: HeadsSection
    ) -> None:
        super().__init__(architecture=architecture, execution=execution, heads=heads)
        if heads.mlm or heads.task is not None:
            self.head = PredictionHead(architecture=architecture, execution=execution)

    def decoder_input(self, hidden_BPD: Array) -> Array:
        """Returns the input of the MLM head, [B, P, D]."""
        return self.head(hidden_BPD)

    def task_states(
        self, hidden_BLD: Array, segment_ids: Array, dropout_key: Array | None
    ) -> Float[Array, "batch queries hidden"]:
        """Returns the input of the task head, see `EncoderModel`."""
        read = self.head(self.pooled_for_task(hidden_BLD, segment_ids))
        return dropout(read, self.task_dropout, dropout_key)


MODEL = ModernBert
