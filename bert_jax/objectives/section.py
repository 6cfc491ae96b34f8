"""The objective's settings, where reading them does not import JAX."""

from typing import Literal

from bert_jax.data.rows.masking import MaskingSection
from bert_jax.section import Section

ObjectiveName = Literal["bert", "sop", "roberta"]


class ObjectiveSection(Section):
    """Which loss, and how it masks; the two combine freely.

    ``objective: {name: sop, masking: {unit: ngram}}`` is ALBERT's.

    Attributes:
        name: ``bert``: masked language model and next sentence prediction. ``sop``: masked language
            model and sentence order prediction. ``roberta``: masked language model alone.
        masking: of training rows.
    """

    name: ObjectiveName = "bert"
    masking: MaskingSection = MaskingSection()
