"""The model of the encoders that share BERT's post-LayerNorm layers."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from bert_jax.model.architecture import PostNormArchitecture
from bert_jax.model.dropout import dropout
from bert_jax.model.encoder_model import EncoderModel
from bert_jax.model.heads import HEAD_GROUPS, TaskHead
from bert_jax.model.post_norm import POST_NORM_GROUPS, PostNormEncoder, post_norm_limit
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.parallel.parameter_groups import ParameterGroups


class PostNormModel(EncoderModel):
    """The post-LayerNorm encoder with BERT's task heads."""

    encoder_type: ClassVar[type[PostNormEncoder]] = PostNormEncoder
    groups = ParameterGroups((*POST_NORM_GROUPS, *HEAD_GROUPS))
    limit = staticmethod(post_norm_limit)

    def __init__(
        self, *, architecture: PostNormArchitecture, execution: Execution, heads: HeadsSection
    ) -> None:
        super().__init__(architecture=architecture, execution=execution, heads=heads)
        parts = {"architecture": architecture, "execution": execution}
        self.encoder = self.encoder_type(**parts, causal=heads.causal)
        if heads.task is not None:
            self.task = TaskHead(outputs=heads.outputs, **parts)
            own = heads.task_dropout
            self.task_dropout = architecture.hidden_dropout_prob if own is None else own
        self.task_reads_pooler = heads.task in architecture.pooled_heads

    def task_logits(
        self,
        hidden_BLD: Float[Array, "batch length hidden"],
        segment_ids: Array,
        *,
        dropout_key: Array | None = None,
    ) -> Float[Array, "batch ..."]:
        """Returns the float32 logits of the task head, see `EncoderModel.task_logits`.

        Question answering has no dropout before the head.
        """
        read = hidden_BLD
        if self.task_reads_pooler:
            read = self.pooler(self.read_token(hidden_BLD, segment_ids))
        if self.heads.task != "question_answering":
            read = dropout(read, self.task_dropout, dropout_key)
        logits = self.task(read).astype(jnp.float32)
        return logits[:, 0] if self.heads.scores_rows else logits
