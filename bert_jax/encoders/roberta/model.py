"""RoBERTa: the post-LayerNorm encoder with RoBERTa's positions and heads."""

import jax.numpy as jnp

from bert_jax.model.post_norm_model import ClassifierModel


class Roberta(ClassifierModel):
    """RoBERTa with the heads of a `HeadsSection` (arXiv 1907.11692).

    Sequence classification has its own dense layer on ``<s>``. Of the tasks, only multiple choice
    reads the pooler, as in Hugging Face's classes.
    """

    classifier_tasks = ("sequence_classification",)
    classifier_activation = staticmethod(jnp.tanh)


MODEL = Roberta
