"""BERT: the post-LayerNorm encoder with a pooler, pretraining heads and a task head."""

from jaxtyping import Array, Float

from bert_jax.encoders.bert.section import BertArchitecture
from bert_jax.model.heads import HEAD_GROUPS, NextSentenceHead
from bert_jax.model.post_norm import POST_NORM_GROUPS
from bert_jax.model.post_norm_model import PostNormModel
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.parallel.parameter_groups import ParameterGroup, ParameterGroups


class Bert(PostNormModel):
    """BERT with the heads of a `HeadsSection` (arXiv 1810.04805)."""

    groups = ParameterGroups(
        (
            *POST_NORM_GROUPS,
            ParameterGroup("pooler", "pooler", title="the pooler"),
            ParameterGroup("next_sentence", "heads", title="the next-sentence head"),
            *HEAD_GROUPS,
        )
    )

    def __init__(
        self, *, architecture: BertArchitecture, execution: Execution, heads: HeadsSection
    ) -> None:
        super().__init__(architecture=architecture, execution=execution, heads=heads)
        if heads.next_sentence:
            parts = {"architecture": architecture, "execution": execution}
            self.next_sentence = NextSentenceHead(**parts)

    def next_sentence_logits(
        self, cls_BED: Float[Array, "batch examples hidden"]
    ) -> Float[Array, "batch examples 2"]:
        """Returns the float32 logits of the next-sentence head for states of [CLS] tokens."""
        return self.next_sentence(self.pooler(cls_BED))


MODEL = Bert
