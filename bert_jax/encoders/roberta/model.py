"""RoBERTa: the post-LayerNorm encoder with RoBERTa's positions and heads."""

from jaxtyping import Array, Float

from bert_jax.encoders.roberta.section import RobertaArchitecture
from bert_jax.model.dropout import dropout
from bert_jax.model.heads import Pooler
from bert_jax.model.layers import subkey
from bert_jax.model.post_norm_model import PostNormModel
from bert_jax.model.section import Execution, HeadsSection


class Roberta(PostNormModel):
    """RoBERTa with the heads of a `HeadsSection` (arXiv 1907.11692).

    Sequence classification has its own dense layer on ``<s>``. Of the tasks, only multiple choice
    reads the pooler, as in Hugging Face's classes.
    """

    def __init__(
        self, *, architecture: RobertaArchitecture, execution: Execution, heads: HeadsSection
    ) -> None:
        super().__init__(architecture=architecture, execution=execution, heads=heads)
        if heads.task == "sequence_classification":
            self.classifier = Pooler(architecture=architecture, execution=execution)

    def task_logits(
        self,
        hidden_BLD: Float[Array, "batch length hidden"],
        segment_ids: Array,
        *,
        dropout_key: Array | None = None,
    ) -> Float[Array, "batch ..."]:
        """Returns the float32 logits of the task head, see `EncoderModel.task_logits`."""
        if self.heads.task == "sequence_classification":
            read = self.read_token(hidden_BLD, segment_ids)
            read = dropout(read, self.task_dropout, subkey(dropout_key, 0))
            hidden_BLD, dropout_key = self.classifier(read), subkey(dropout_key, 1)
        return super().task_logits(hidden_BLD, segment_ids, dropout_key=dropout_key)


MODEL = Roberta
