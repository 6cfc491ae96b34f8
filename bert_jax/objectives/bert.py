"""The objective of BERT: masked language model and next sentence prediction."""

from typing import Literal

from bert_jax.model.section import HeadsSection
from bert_jax.objectives.section import MaskedObjectiveSection


class BertObjectiveSection(MaskedObjectiveSection):
    """Masked language model and next sentence prediction (arXiv 1810.04805, section 3.1)."""

    heads = HeadsSection()
    pairings = ("nsp",)
    pair = "nsp"

    kind: Literal["bert"] = "bert"
