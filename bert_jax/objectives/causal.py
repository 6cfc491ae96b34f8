"""The objective of left-to-right language models: the next token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.objectives.section import WITHOUT_PAIRS, ObjectiveSection
from bert_jax.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bert_jax.task import Objective


class CausalObjectiveSection(ObjectiveSection):
    """Every token predicts the next token of its example, with left-to-right attention.

    The prediction reads the MLM head. With BERT, this is "LTR & No NSP" of arXiv 1810.04805,
    section 5.1.
    """

    heads = HeadsSection(pooler=False, next_sentence=False, causal=True)
    pairings = WITHOUT_PAIRS

    kind: Literal["causal"] = "causal"

    def make(
        self, *, architecture: EncoderArchitecture, execution: Execution, tokenizer: Tokenizer
    ) -> Objective:
        """Returns the objective for a model. Imports JAX."""
        from bert_jax.objectives.next_token import NextToken

        return NextToken(
            architecture=architecture, execution=execution, heads=self.heads, tokenizer=tokenizer
        )
