"""The model of the encoders that share BERT's post-LayerNorm layers."""

from collections.abc import Callable, Collection
from typing import ClassVar

from jaxtyping import Array, Float

from bert_jax.model.architecture import PostNormArchitecture
from bert_jax.model.dropout import dropout
from bert_jax.model.encoder_model import EncoderModel
from bert_jax.model.heads import HEAD_GROUPS, Pooler, TaskHead
from bert_jax.model.layers import subkey
from bert_jax.model.post_norm import POST_NORM_GROUPS, PostNormEncoder, post_norm_limit
from bert_jax.model.section import Execution, HeadsSection, TaskName
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

    def task_states(
        self, hidden_BLD: Array, segment_ids: Array, dropout_key: Array | None
    ) -> Float[Array, "batch queries hidden"]:
        """Returns the input of the task head. Question answering has no dropout before it."""
        read = hidden_BLD
        if self.task_reads_pooler:
            read = self.pooler(self.read_token(hidden_BLD, segment_ids))
        if self.heads.task != "question_answering":
            read = dropout(read, self.task_dropout, dropout_key)
        return read


class ClassifierModel(PostNormModel):
    """A post-LayerNorm encoder with a dense layer before the heads of some tasks."""

    classifier_tasks: ClassVar[Collection[TaskName]]
    """The tasks whose head has the dense layer."""
    classifier_activation: ClassVar[Callable[[Array], Array]]

    def __init__(
        self, *, architecture: PostNormArchitecture, execution: Execution, heads: HeadsSection
    ) -> None:
        super().__init__(architecture=architecture, execution=execution, heads=heads)
        if heads.task in self.classifier_tasks:
            parts = {"architecture": architecture, "execution": execution}
            self.classifier = Pooler(activation=type(self).classifier_activation, **parts)

    def task_states(
        self, hidden_BLD: Array, segment_ids: Array, dropout_key: Array | None
    ) -> Float[Array, "batch queries hidden"]:
        """Returns the input of the task head. Choices have no dropout before the dense layer."""
        if self.heads.task in self.classifier_tasks:
            read = self.read_token(hidden_BLD, segment_ids)
            if self.heads.task == "sequence_classification":
                read = dropout(read, self.task_dropout, subkey(dropout_key, 0))
            hidden_BLD, dropout_key = self.classifier(read), subkey(dropout_key, 1)
        return super().task_states(hidden_BLD, segment_ids, dropout_key)
