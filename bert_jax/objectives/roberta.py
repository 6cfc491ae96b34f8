"""The objective of RoBERTa: masked language model alone."""

from typing import Literal

from bert_jax.model.section import HeadsSection
from bert_jax.objectives.section import WITHOUT_PAIRS, MaskedObjectiveSection


class RobertaObjectiveSection(MaskedObjectiveSection):
    """Masked language model alone (arXiv 1907.11692, section 4.2)."""

    heads = HeadsSection(pooler=False, next_sentence=False)
    pairings = WITHOUT_PAIRS

    kind: Literal["roberta"] = "roberta"
