"""NeoBERT with the heads of a checkpoint."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from bert_jax.encoders.neobert.section import NeoBertArchitecture
from bert_jax.model.dropout import dropout
from bert_jax.model.heads import BiasedUntiedDecoder, Pooler, TaskHead
from bert_jax.model.layers import subkey
from bert_jax.model.pre_norm_model import PreNormModel
from bert_jax.model.section import Execution, HeadsSection

_CLASSIFIER_DROPOUT = 0.1


class NeoBert(PreNormModel):
    """NeoBERT with the heads of a `HeadsSection` (arXiv 2502.19587).

    Heads of labels and choices have a dense layer with tanh, as in the authors' classes.
    """

    mlm_head = BiasedUntiedDecoder

    def __init__(
        self, *, architecture: NeoBertArchitecture, execution: Execution, heads: HeadsSection
    ) -> None:
        super().__init__(architecture=architecture, execution=execution, heads=heads)
        parts = {"architecture": architecture, "execution": execution}
        if heads.task not in (None, "question_answering"):
            self.classifier = Pooler(**parts)
        if heads.task is not None:
            self.task = TaskHead(outputs=heads.outputs, **parts)
            rate = heads.task_dropout
            self.task_dropout = _CLASSIFIER_DROPOUT if rate is None else rate

    def task_logits(
        self,
        hidden_BLD: Float[Array, "batch length hidden"],
        segment_ids: Array,
        *,
        dropout_key: Array | None = None,
    ) -> Float[Array, "batch ..."]:
        """Returns the float32 logits of the task head, see `EncoderModel.task_logits`."""
        by_row = self.heads.scores_rows
        read = self.read_token(hidden_BLD, segment_ids) if by_row else hidden_BLD
        read = dropout(read, self.task_dropout, subkey(dropout_key, 0))
        if self.heads.task != "question_answering":
            read = self.classifier(read)
            read = dropout(read, self.task_dropout, subkey(dropout_key, 1))
        logits = self.task(read).astype(jnp.float32)
        return logits[:, 0] if by_row else logits


MODEL = NeoBert
