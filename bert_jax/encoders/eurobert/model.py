"""EuroBERT with the heads of a checkpoint."""

from jaxtyping import Array, Float

from bert_jax.encoders.eurobert.section import EuroBertArchitecture
from bert_jax.model.dropout import dropout
from bert_jax.model.heads import Pooler, UntiedDecoder
from bert_jax.model.layers import ACTIVATIONS
from bert_jax.model.pooling import pooled_states
from bert_jax.model.pre_norm_model import PreNormModel
from bert_jax.model.section import Execution, HeadsSection


class EuroBert(PreNormModel):
    """EuroBERT with the heads of a `HeadsSection` (arXiv 2503.05500).

    Task heads of rows have a dense layer with GELU, as in Hugging Face's classes.
    """

    mlm_head = UntiedDecoder

    def __init__(
        self, *, architecture: EuroBertArchitecture, execution: Execution, heads: HeadsSection
    ) -> None:
        super().__init__(architecture=architecture, execution=execution, heads=heads)
        if heads.scores_rows:
            self.classifier = Pooler(
                activation=ACTIVATIONS["gelu_erf"], architecture=architecture, execution=execution
            )

    def task_states(
        self, hidden_BLD: Array, segment_ids: Array, dropout_key: Array | None
    ) -> Float[Array, "batch queries hidden"]:
        """Returns the input of the task head, see `EncoderModel`."""
        read = self.pooled_for_task(hidden_BLD, segment_ids)
        read = self.classifier(read) if self.heads.scores_rows else read
        return dropout(read, self.task_dropout, dropout_key)

    def row_logits(self, logits_BQC: Array, segment_ids: Array) -> Float[Array, "batch outputs"]:
        """Returns the logits of rows. With the pooling `late`, they are means over the tokens."""
        if self.pooling == "late":
            return pooled_states(logits_BQC, segment_ids, pool="mean")
        return super().row_logits(logits_BQC, segment_ids)


MODEL = EuroBert
