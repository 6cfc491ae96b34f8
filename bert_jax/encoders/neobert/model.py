"""NeoBERT with the heads of a checkpoint."""

from jaxtyping import Array, Float

from bert_jax.encoders.neobert.section import NeoBertArchitecture
from bert_jax.model.dropout import dropout
from bert_jax.model.heads import BiasedUntiedDecoder, Pooler
from bert_jax.model.layers import subkey
from bert_jax.model.pre_norm_model import PreNormModel
from bert_jax.model.section import Execution, HeadsSection


class NeoBert(PreNormModel):
    """NeoBERT with the heads of a `HeadsSection` (arXiv 2502.19587).

    Heads of labels and choices have a dense layer with tanh, as in the authors' classes.
    """

    mlm_head = BiasedUntiedDecoder
    default_task_dropout = 0.1

    def __init__(
        self, *, architecture: NeoBertArchitecture, execution: Execution, heads: HeadsSection
    ) -> None:
        super().__init__(architecture=architecture, execution=execution, heads=heads)
        if heads.task not in (None, "question_answering"):
            self.classifier = Pooler(architecture=architecture, execution=execution)

    def task_states(
        self, hidden_BLD: Array, segment_ids: Array, dropout_key: Array | None
    ) -> Float[Array, "batch queries hidden"]:
        """Returns the input of the task head, see `EncoderModel`."""
        read = self.pooled_for_task(hidden_BLD, segment_ids)
        read = dropout(read, self.task_dropout, subkey(dropout_key, 0))
        if self.heads.task == "question_answering":
            return read
        return dropout(self.classifier(read), self.task_dropout, subkey(dropout_key, 1))


MODEL = NeoBert
