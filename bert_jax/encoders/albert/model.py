"""ALBERT: the post-LayerNorm encoder with shared layers and factorised embeddings."""

from bert_jax.encoders.albert.section import AlbertArchitecture
from bert_jax.model.post_norm import shared_groups
from bert_jax.model.post_norm_model import PostNormModel
from bert_jax.model.section import Execution, HeadsSection


class Albert(PostNormModel):
    """ALBERT with the heads of a `HeadsSection` (arXiv 1909.11942).

    The head for sentence order is BERT's next-sentence head. Hugging Face's class has dropout
    before it, google-research/albert and this class have none.
    """

    def __init__(
        self, *, architecture: AlbertArchitecture, execution: Execution, heads: HeadsSection
    ) -> None:
        super().__init__(architecture=architecture, execution=execution, heads=heads)
        self.groups = shared_groups(self.groups, architecture)
        if heads.task is not None and heads.task_dropout is None:
            self.task_dropout = architecture.classifier_dropout_prob


MODEL = Albert
