"""ELECTRA: the post-LayerNorm encoder with the task heads of Hugging Face's classes."""

from jaxtyping import Array, Float

from bert_jax.encoders.electra.section import ElectraArchitecture
from bert_jax.model.dropout import dropout
from bert_jax.model.heads import Pooler
from bert_jax.model.layers import ACTIVATIONS, subkey
from bert_jax.model.post_norm_model import PostNormModel
from bert_jax.model.section import Execution, HeadsSection


class Electra(PostNormModel):
    """ELECTRA with the heads of a `HeadsSection` (arXiv 2003.10555).

    Task heads of rows have a dense layer with GELU on [CLS], as in Hugging Face's classes.
    """

    def __init__(
        self, *, architecture: ElectraArchitecture, execution: Execution, heads: HeadsSection
    ) -> None:
        super().__init__(architecture=architecture, execution=execution, heads=heads)
        if heads.scores_rows:
            self.classifier = Pooler(
                activation=ACTIVATIONS["gelu_erf"], architecture=architecture, execution=execution
            )

    def task_logits(
        self,
        hidden_BLD: Float[Array, "batch length hidden"],
        segment_ids: Array,
        *,
        dropout_key: Array | None = None,
    ) -> Float[Array, "batch ..."]:
        """Returns the float32 logits of the task head, see `EncoderModel.task_logits`."""
        if self.heads.scores_rows:
            read = self.read_token(hidden_BLD, segment_ids)
            if self.heads.task == "sequence_classification":
                read = dropout(read, self.task_dropout, subkey(dropout_key, 0))
            hidden_BLD, dropout_key = self.classifier(read), subkey(dropout_key, 1)
        return super().task_logits(hidden_BLD, segment_ids, dropout_key=dropout_key)


MODEL = Electra
