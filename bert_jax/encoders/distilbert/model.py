"""DistilBERT: the post-LayerNorm encoder without token types."""

import jax
from jaxtyping import Array, Float

from bert_jax.encoders.distilbert.section import DistilBertArchitecture
from bert_jax.model.dropout import dropout
from bert_jax.model.heads import Pooler
from bert_jax.model.post_norm_model import PostNormModel
from bert_jax.model.section import Execution, HeadsSection


class DistilBert(PostNormModel):
    """DistilBERT with the heads of a `HeadsSection` (arXiv 1910.01108).

    Task heads of rows have a dense layer with ReLU on [CLS], as in Hugging Face's classes.
    """

    def __init__(
        self, *, architecture: DistilBertArchitecture, execution: Execution, heads: HeadsSection
    ) -> None:
        super().__init__(architecture=architecture, execution=execution, heads=heads)
        if heads.scores_rows:
            self.classifier = Pooler(
                activation=jax.nn.relu, architecture=architecture, execution=execution
            )
        if heads.task_dropout is None and heads.scores_rows:
            self.task_dropout = architecture.seq_classif_dropout
        if heads.task_dropout is None and heads.task == "question_answering":
            self.task_dropout = architecture.qa_dropout

    def task_states(
        self, hidden_BLD: Array, segment_ids: Array, dropout_key: Array | None
    ) -> Float[Array, "batch queries hidden"]:
        """Returns the input of the task head, see `EncoderModel`."""
        if self.heads.scores_rows:
            hidden_BLD = self.classifier(self.read_token(hidden_BLD, segment_ids))
        if self.heads.task == "question_answering":
            hidden_BLD = dropout(hidden_BLD, self.task_dropout, dropout_key)
        return super().task_states(hidden_BLD, segment_ids, dropout_key)


MODEL = DistilBert
