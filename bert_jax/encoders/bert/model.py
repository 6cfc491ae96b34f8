"""BERT: the post-LayerNorm encoder with its own pretraining and task heads."""

from bert_jax.model.post_norm_model import PostNormModel


class Bert(PostNormModel):
    """BERT with the heads of a `HeadsSection` (arXiv 1810.04805)."""


MODEL = Bert
