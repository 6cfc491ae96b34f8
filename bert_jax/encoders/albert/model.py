"""ALBERT: the post-LayerNorm encoder with shared layers and factorised embeddings."""

from jaxtyping import Array, Float

from bert_jax.encoders.albert.section import AlbertArchitecture
from bert_jax.model.heads import (
    HEAD_GROUPS,
    REPLACED_TOKENS,
    NextSentenceHead,
    ReplacedTokenHead,
)
from bert_jax.model.post_norm import POST_NORM_GROUPS, shared_groups
from bert_jax.model.post_norm_model import PostNormModel
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.parallel.parameter_groups import ParameterGroup, ParameterGroups


class Albert(PostNormModel):
    """ALBERT with the heads of a `HeadsSection` (arXiv 1909.11942).

    The head for sentence order is BERT's next-sentence head. Hugging Face's class has dropout
    before it, google-research/albert and this class have none.
    """

    groups = ParameterGroups(
        (
            *POST_NORM_GROUPS,
            ParameterGroup("pooler", "pooler", title="the pooler"),
            ParameterGroup("next_sentence", "heads", title="the sentence-order head"),
            REPLACED_TOKENS,
            *HEAD_GROUPS,
        )
    )

    def __init__(
        self, *, architecture: AlbertArchitecture, execution: Execution, heads: HeadsSection
    ) -> None:
        super().__init__(architecture=architecture, execution=execution, heads=heads)
        self.groups = shared_groups(self.groups, architecture)
        if heads.task is not None and heads.task_dropout is None:
            self.task_dropout = architecture.classifier_dropout_prob
        parts = {"architecture": architecture, "execution": execution}
        if heads.next_sentence:
            self.next_sentence = NextSentenceHead(**parts)
        if heads.replaced_tokens:
            self.replaced_tokens = ReplacedTokenHead(**parts)

    def next_sentence_logits(
        self, cls_BED: Float[Array, "batch examples hidden"]
    ) -> Float[Array, "batch examples 2"]:
        """Returns the float32 logits of the sentence-order head for states of [CLS] tokens."""
        return self.next_sentence(self.pooler(cls_BED))


MODEL = Albert
