"""ELECTRA: the post-LayerNorm encoder with the task heads of Hugging Face's classes."""

from bert_jax.model.layers import ACTIVATIONS
from bert_jax.model.post_norm_model import ClassifierModel


class Electra(ClassifierModel):
    """ELECTRA with the heads of a `HeadsSection` (arXiv 2003.10555).

    Task heads of rows have a dense layer with GELU on [CLS], as in Hugging Face's classes.
    """

    classifier_tasks = ("sequence_classification", "multiple_choice")
    classifier_activation = staticmethod(ACTIVATIONS["gelu_erf"])


MODEL = Electra
