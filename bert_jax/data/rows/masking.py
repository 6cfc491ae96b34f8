"""Masked-token selection and replacement (80% [MASK], 10% random, 10% unchanged)."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
import pydantic

from bert_jax.data.rows import mask_selection
from bert_jax.data.rows.mask_selection import Segmenter
from bert_jax.errors import SettingError, UserError
from bert_jax.section import Section

if TYPE_CHECKING:
    from bert_jax.text.tokenizer import Tokenizer
    from bert_jax.text.vocabulary import SpecialIds


MAX_NGRAM: Final = 3
MAX_SPAN: Final = 10
SPAN_STOP: Final = 0.2  # probability that a span ends after each of its words: SpanBERT's p

# Units that read a setting: with other units it is refused, since it would do nothing.
_UNITS_OF_SETTINGS: Final = {
    "max_words": ("ngram", "span"),
    "segmenter": ("whole_word", "ngram", "span"),
}


class MaskingSection(Section):
    """How tokens are masked: 15% of them; 80% become [MASK], 10% a random token, 10% stay.

    The defaults are BERT's (arXiv 1810.04805, section 3.1).

    Attributes:
        rate: share of an example's tokens to predict, special tokens included in the count, as in
            google-research/bert ``create_pretraining_data.py`` (``masked_lm_prob``).
        unit: what is masked as a whole: ``token``; ``whole_word`` (a word's first piece and the
            continuations after it; google-research/bert's ``do_whole_word_mask``); ``ngram`` (up to
            3 words, p(n) ∝ 1/n: ALBERT, arXiv 1909.11942); ``span`` (up to 10 words, geometrically
            distributed; all tokens of a span are replaced the same way: SpanBERT, arXiv
            1907.10529).
        max_words: longest ``ngram`` or ``span``; by default 3 and 10.
        segmenter: ``module:function`` that cuts Chinese text into words, such as ``jieba:lcut``,
            for the units made of words; by default each character is a word. See
            `bert_jax.data.rows.mask_selection.Segmenter`.
        replace_with_mask: share of the masked tokens (spans) that become [MASK].
        replace_with_random: share that become a token drawn uniformly from the whole vocabulary.
            The rest stay unchanged and are predicted all the same.
        max_predictions: most predictions per example (``max_predictions_per_seq``); by default what
            ``rate`` gives for a full row, rounded up.
    """

    rate: float = pydantic.Field(default=0.15, gt=0.0, lt=1.0)
    unit: Literal["token", "whole_word", "ngram", "span"] = "token"
    max_words: int | None = pydantic.Field(default=None, ge=1)
    segmenter: str | None = None
    replace_with_mask: float = pydantic.Field(default=0.8, ge=0.0, le=1.0)
    replace_with_random: float = pydantic.Field(default=0.1, ge=0.0, le=1.0)
    max_predictions: int | None = pydantic.Field(default=None, ge=1)

    @pydantic.model_validator(mode="after")
    def _shares_fit(self) -> MaskingSection:
        if self.replace_with_mask + self.replace_with_random > 1.0 + 1e-9:
            raise SettingError(
                "masking.shares",
                "found {found:g}, but replace_with_mask is {masked:g}; allowed: a sum of at most 1",
                place="replace_with_random",
                found=self.replace_with_random,
                masked=self.replace_with_mask,
            )
        return self

    @pydantic.model_validator(mode="after")
    def _settings_fit_unit(self) -> MaskingSection:
        for name, units in _UNITS_OF_SETTINGS.items():
            found = getattr(self, name)
            if found is not None and self.unit not in units:
                raise SettingError(
                    "masking.unit",
                    "found {found}, allowed: only with unit {allowed:or}, not with {unit}",
                    place=name,
                    found=found,
                    allowed=units,
                    unit=self.unit,
                )
        return self

    @property
    def span_chances(self) -> np.ndarray:
        """Probabilities [max_words] of 1, 2, … words, for ``ngram`` and ``span``."""
        if self.unit == "ngram":
            return mask_selection.ngram_chances(self.max_words or MAX_NGRAM)
        return mask_selection.geometric_chances(SPAN_STOP, self.max_words or MAX_SPAN)

    def predictions(self, seq_length: int) -> int:
        """Returns the slots for predictions in a row: 512 -> 77, 128 -> 20 at 15%."""
        if self.max_predictions is not None:
            return self.max_predictions
        return math.ceil(self.rate * seq_length)


class MaskedExample(NamedTuple):
    """An example of n tokens with k predictions, in the order of their positions."""

    input_ids: np.ndarray  # int32 [n]: what the model sees
    positions: np.ndarray  # int [k]: where it predicts, ascending
    ids: np.ndarray  # int32 [k]: the original tokens there


@dataclasses.dataclass(frozen=True)
class TokenMasker:
    """Masks one example: ``masker(input_ids, rng)``. Picklable, free of JAX.

    ``[CLS] the dog bark ##ed [SEP]`` -> ``[CLS] the [MASK] bark ##ed [SEP]``, positions ``[2]``,
    ids ``[dog]``.
    """

    masking: MaskingSection
    max_predictions: int  # of an example
    special: SpecialIds  # `cls` and `sep` are never masked
    # Random replacements are any of them, special tokens included, as in google-research/bert.
    vocab_size: int
    # bool [vocab_size], true for pieces that continue a word; read for the units made of words.
    is_continuation: np.ndarray = dataclasses.field(repr=False, compare=False)
    segmenter: Segmenter | None = None  # finds the words of Chinese text for the same units

    @classmethod
    def from_tokenizer(
        cls, tokenizer: Tokenizer, *, masking: MaskingSection, max_predictions: int
    ) -> TokenMasker:
        """Returns the masker for a tokenizer; UserError: the segmenter cannot be imported."""
        segmenter = None
        if masking.segmenter is not None:
            pieces = tokenizer.pieces(range(tokenizer.vocab_size))
            segmenter = Segmenter.create(masking.segmenter, pieces)
        return cls(
            masking=masking,
            max_predictions=max_predictions,
            special=tokenizer.special,
            vocab_size=tokenizer.vocab_size,
            is_continuation=np.asarray(tokenizer.is_continuation, bool),
            segmenter=segmenter,
        )

    def __call__(self, input_ids: np.ndarray, rng: np.random.Generator) -> MaskedExample:
        """Returns a masked example of ids [n], of any integer type, which stay unchanged.

        The number of predictions is google-research/bert's: ``min(max_predictions, max(1, round(n *
        rate)))``, with [CLS] and [SEP] counted in n. Whole words and spans may fall short of it: a
        word that would exceed it is skipped for a shorter one. One array is drawn from ``rng``.
        Raises UserError: an id exceeds the vocabulary.
        """
        check_vocabulary(int(input_ids.max()), vocab_size=self.vocab_size)
        candidates = np.flatnonzero(
            (input_ids != self.special.cls) & (input_ids != self.special.sep)
        )
        total = len(candidates)
        budget = max(1, round(len(input_ids) * self.masking.rate))
        budget = min(self.max_predictions, budget, total)
        sized = total if self.masking.unit in ("ngram", "span") else 0
        # Uniform doubles only: NumPy keeps `random` stable between versions, `choice` and
        # `permutation` less so.
        draws = rng.random(total + 2 * budget + sized)
        actions, randoms = draws[total : total + budget], draws[total + budget : total + 2 * budget]
        keys, sizes = draws[:total], draws[total + 2 * budget :]
        if not budget:
            positions = candidates
        elif self.masking.unit == "token":
            positions = candidates[mask_selection.choose_tokens(keys, budget)]
        else:
            words = self._words(input_ids, candidates)
            keys, sizes = keys[: len(words.starts)], sizes[: len(words.starts)]
            if self.masking.unit == "whole_word":
                positions = candidates[mask_selection.choose_words(words, keys, budget)]
            else:
                chances = self.masking.span_chances
                spans = mask_selection.choose_spans(
                    words, keys=keys, sizes=sizes, chances=chances, budget=budget
                )
                tokens, span_of = mask_selection.tokens_of_spans(spans, total=total)
                positions = candidates[tokens]
                if self.masking.unit == "span":  # SpanBERT, section 3.1: one action per span
                    actions = actions[span_of]
        masked = input_ids.astype(np.int32)
        ids = masked[positions]
        masked[positions] = self._replace(ids, actions[: len(ids)], randoms[: len(ids)])
        return MaskedExample(masked, positions, ids)

    def _words(self, input_ids: np.ndarray, candidates: np.ndarray) -> mask_selection.Words:
        continues = self.is_continuation[input_ids]
        if self.segmenter is not None:
            continues = self.segmenter.join(input_ids, continues)
        return mask_selection.find_words(candidates, continues[candidates])

    def _replace(self, ids: np.ndarray, actions: np.ndarray, randoms: np.ndarray) -> np.ndarray:
        """Returns the replacement of each id [k]: [MASK], a random id, or the id itself.

        Uniform numbers [k] decide between the three (`actions`) and choose the random ids.
        """
        shares = self.masking
        random_ids = (randoms * self.vocab_size).astype(np.int32)
        seen = np.where(actions < shares.replace_with_mask, np.int32(self.special.mask), random_ids)
        changed = actions < shares.replace_with_mask + shares.replace_with_random
        return np.where(changed, seen, ids)


def check_vocabulary(highest: int, *, vocab_size: int) -> None:
    """Refuses a dataset whose highest token id exceeds the vocabulary.

    Raises UserError: ``highest`` is ``vocab_size`` or more.
    """
    if highest >= vocab_size:
        raise UserError(
            "dataset.token_id",
            "found token id {found}, allowed: 0 to {most}. The dataset was made with another "
            "vocabulary than the run's.",
            place="dataset",
            found=highest,
            most=vocab_size - 1,
        )
