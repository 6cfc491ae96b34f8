"""The objective of ALBERT: masked language model and sentence order prediction."""

from typing import Literal

from bert_jax.model.section import HeadsSection
from bert_jax.objectives.section import MaskedObjectiveSection


class SopObjectiveSection(MaskedObjectiveSection):
    """Masked language model and sentence order prediction (arXiv 1909.11942, section 3.1).

    ``objective: {kind: sop, masking: {unit: ngram}}`` is the objective of ALBERT.
    """

    heads = HeadsSection()
    pairings = ("sop",)
    pair = "sop"

    kind: Literal["sop"] = "sop"
