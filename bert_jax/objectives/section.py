"""The base classes of the settings of objectives. Needs no JAX."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from bert_jax.data.dataset.provenance import PairingKind
from bert_jax.data.rows.masking import MaskingSection
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.section import Section
from bert_jax.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bert_jax.task import Objective

PairTask = Literal["nsp", "sop"]
WITHOUT_PAIRS: Final[tuple[PairingKind, ...]] = ("full_sentences", "doc_sentences")


class ObjectiveSection(Section):
    """The settings of an objective, and the facts about it that need no JAX.

    Attributes:
        kind: name of the objective.
    """

    heads: ClassVar[HeadsSection]
    """The heads that the objective trains. The model of a run has only these heads."""
    pairings: ClassVar[tuple[PairingKind, ...]]
    """The allowed pairing kinds of datasets."""
    has_second_model: ClassVar[bool] = False
    """Whether the objective needs a model beside the run's. All phases then have this objective."""

    if TYPE_CHECKING:  # a subclass has one kind
        kind: Any
    else:
        kind: str

    @property
    def evaluated_pairings(self) -> tuple[PairingKind, ...]:
        """The allowed pairing kinds of datasets in an evaluation."""
        return self.pairings

    def check_sizes(self, architecture: EncoderArchitecture) -> None:
        """Raises UserError if the model's sizes do not fit the objective. Needs no JAX."""
        del architecture

    @abc.abstractmethod
    def make(
        self, *, architecture: EncoderArchitecture, execution: Execution, tokenizer: Tokenizer
    ) -> Objective:
        """Returns the objective for a model. Imports JAX."""


class MaskedObjectiveSection(ObjectiveSection):
    """A masked language model with an optional pair task. Any loss works with any masking.

    Attributes:
        masking: masking of training rows.
    """

    pair: ClassVar[PairTask | None] = None

    masking: MaskingSection = MaskingSection()

    @property
    def evaluated_pairings(self) -> tuple[PairingKind, ...]:
        """The allowed pairing kinds of datasets in an evaluation: those without pairs too."""
        return tuple(dict.fromkeys((*self.pairings, *WITHOUT_PAIRS)))

    def make(
        self, *, architecture: EncoderArchitecture, execution: Execution, tokenizer: Tokenizer
    ) -> Objective:
        """Returns the objective for a model. Imports JAX."""
        from bert_jax.objectives.masked_language_model import MaskedLanguageModel

        return MaskedLanguageModel(
            architecture=architecture,
            execution=execution,
            heads=self.heads,
            masking=self.masking,
            tokenizer=tokenizer,
            pair=self.pair,
        )
