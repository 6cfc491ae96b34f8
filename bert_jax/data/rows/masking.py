"""Selects tokens to predict and replaces them (80% [MASK], 10% random, 10% unchanged)."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
import pydantic

from bert_jax.data.rows import mask_selection
from bert_jax.data.rows.mask_selection import Segmenter
from bert_jax.errors import SettingError, UserError, one_of
from bert_jax.section import Section
from bert_jax.text.word_starts import WordBounds, continuations

if TYPE_CHECKING:
    from bert_jax.text.tokenizer import Tokenizer
    from bert_jax.text.vocabulary import SpecialIds


MAX_NGRAM: Final = 3
MAX_SPAN: Final = 10
SPAN_STOP: Final = 0.2  # probability that a span ends after each of its words: SpanBERT's p

# Units that use a setting. With any other unit the setting is refused.
_UNITS_OF_SETTINGS: Final = {
    "max_words": ("ngram", "span"),
    "segmenter": ("whole_word", "ngram", "span"),
}


class MaskingSection(Section):
    """How tokens are masked: 15% are predicted; of these 80% become [MASK] and 10% random tokens.

    The defaults are BERT's (arXiv 1810.04805, section 3.1).

    Attributes:
        rate: share of an example's tokens that are predicted. Special tokens count towards the
            total, as in google-research/bert (``masked_lm_prob``).
        final_rate: share at the end of the run, to which ``rate`` changes linearly with the step.
            By default ``rate`` is constant. For example, from 0.3 to 0.15 (arXiv 2305.15096).
        unit: unit that is masked as a whole. ``token``: a token. ``whole_word``: a word's first
            piece and its continuations (google-research/bert's ``do_whole_word_mask``). ``ngram``:
            up to 3 words, with p(n) ∝ 1/n (ALBERT, arXiv 1909.11942). ``span``: up to 10 words,
            geometrically distributed, one kind of replacement for all (SpanBERT, arXiv 1907.10529).
        max_words: longest ``ngram`` or ``span`` in words. The default is 3 for ``ngram``, 10 for
            ``span``.
        segmenter: function that divides Chinese text into words, as ``module:function``, such as
            ``jieba:lcut``. Only for units made of words. By default each character is a word. See
            `bert_jax.data.rows.mask_selection.Segmenter`.
        replace_with_mask: share of the predicted tokens (or spans) that become [MASK].
        replace_with_random: share of the predicted tokens that become a token drawn uniformly from
            the whole vocabulary. All other predicted tokens stay unchanged.
        max_predictions: maximum number of predictions per example (``max_predictions_per_seq``).
            The default is the higher rate times the row's length, rounded up.
    """

    rate: float = pydantic.Field(default=0.15, gt=0.0, lt=1.0)
    final_rate: float | None = pydantic.Field(default=None, gt=0.0, lt=1.0)
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
                f"{self.replace_with_random:g} and {self.replace_with_mask:g} have a sum above 1",
                place="replace_with_random",
            )
        return self

    @pydantic.model_validator(mode="after")
    def _settings_fit_unit(self) -> MaskingSection:
        for name, units in _UNITS_OF_SETTINGS.items():
            found = getattr(self, name)
            if found is not None and self.unit not in units:
                raise SettingError(
                    "masking.unit",
                    f"found {found}, allowed: only with unit {one_of(units)}, not with {self.unit}",
                    place=name,
                )
        return self

    @property
    def span_chances(self) -> np.ndarray:
        """Probabilities of 1, 2, … words for ``ngram`` and ``span``, [max_words]."""
        if self.unit == "ngram":
            return mask_selection.ngram_chances(self.max_words or MAX_NGRAM)
        return mask_selection.geometric_chances(SPAN_STOP, self.max_words or MAX_SPAN)

    @property
    def highest_rate(self) -> float:
        """The highest rate of the run."""
        return max(self.rate, self.final_rate or 0.0)

    def rate_at(self, progress: float) -> float:
        """Returns the rate after a share of the run's steps: 0.3 to 0.1 gives 0.25 at 0.25."""
        if self.final_rate is None:
            return self.rate
        return self.rate + (self.final_rate - self.rate) * min(progress, 1.0)

    def predictions(self, seq_length: int) -> int:
        """Returns the number of prediction slots in a row: at 15%, 512 -> 77 and 128 -> 20."""
        if self.max_predictions is not None:
            return self.max_predictions
        return math.ceil(self.highest_rate * seq_length)


class MaskedExample(NamedTuple):
    """An example of n tokens with k predictions, in the order of their positions."""

    input_ids: np.ndarray  # token ids after masking, int32 [n]
    positions: np.ndarray  # positions of the predictions, ascending, int [k]
    ids: np.ndarray  # original token ids at these positions, int32 [k]


@dataclasses.dataclass(frozen=True)
class TokenMasker:
    """Masks one example: ``masker(input_ids, rng)``. It can be pickled and does not use JAX.

    ``[CLS] the dog bark ##ed [SEP]`` -> ``[CLS] the [MASK] bark ##ed [SEP]``, positions ``[2]``,
    ids ``[dog]``.
    """

    masking: MaskingSection
    max_predictions: int  # maximum number of predictions in an example
    special: SpecialIds  # ids of special tokens; `cls` and `sep` are never masked
    # Number of pieces. A random replacement is any piece, even a special one, as in
    # google-research/bert.
    vocab_size: int
    # Whether a piece continues a word, bool [vocab_size]. Only for units made of words.
    is_continuation: np.ndarray = dataclasses.field(repr=False, compare=False)
    # Words by the characters of adjacent pieces, for vocabularies without `##`.
    ends_word: WordBounds | None = dataclasses.field(default=None, repr=False, compare=False)
    segmenter: Segmenter | None = None  # segmenter of Chinese text, for units made of words

    @classmethod
    def from_tokenizer(
        cls, tokenizer: Tokenizer, *, masking: MaskingSection, max_predictions: int
    ) -> TokenMasker:
        """Returns the masker for a tokenizer.

        Raises UserError if the segmenter cannot be imported.
        """
        segmenter = None
        if masking.segmenter is not None:
            pieces = [piece.strip() for piece in tokenizer.texts(range(tokenizer.vocab_size))]
            segmenter = Segmenter.create(masking.segmenter, pieces)
        return cls(
            masking=masking,
            max_predictions=max_predictions,
            special=tokenizer.special,
            vocab_size=tokenizer.vocab_size,
            is_continuation=np.asarray(tokenizer.is_continuation, bool),
            ends_word=tokenizer.ends_word,
            segmenter=segmenter,
        )

    def candidates(self, input_ids: np.ndarray) -> np.ndarray:
        """Returns the positions of the tokens that may be masked, ascending, int [c]."""
        return np.flatnonzero((input_ids != self.special.cls) & (input_ids != self.special.sep))

    def wanted(self, tokens: int, candidates: int, *, progress: float = 0.0) -> int:
        """Returns the number of predictions in an example, ``max(1, round(tokens * rate))``.

        `tokens` includes [CLS] and [SEP], as in google-research/bert. The number is at most
        `max_predictions` and the number of candidates. The rate is `MaskingSection.rate_at` the
        progress.
        """
        budget = max(1, round(tokens * self.masking.rate_at(progress)))
        return min(self.max_predictions, budget, candidates)

    def __call__(
        self, input_ids: np.ndarray, rng: np.random.Generator, *, progress: float = 0.0
    ) -> MaskedExample:
        """Returns ``input_ids``, integers [n], as a masked example. The argument stays unchanged.

        The number of predictions is `wanted`. Whole words and spans may give fewer predictions,
        because words that would exceed this number are skipped. The progress is a share of the
        run's steps. Raises UserError if an id is not in the vocabulary.
        """
        check_vocabulary(int(input_ids.max()), vocab_size=self.vocab_size)
        candidates = self.candidates(input_ids)
        total = len(candidates)
        budget = self.wanted(len(input_ids), total, progress=progress)
        sized = total if self.masking.unit in ("ngram", "span") else 0
        # Draw only uniform doubles: a new NumPy version is less likely to change `random` than
        # `choice` or `permutation`.
        draws = rng.random(total + 2 * budget + sized)
        actions, randoms = draws[total : total + budget], draws[total + budget : total + 2 * budget]
        keys, sizes = draws[:total], draws[total + 2 * budget :]
        if not budget:
            positions = candidates
        elif self.masking.unit == "token":
            positions = candidates[mask_selection.choose_tokens(keys, budget)]
        else:
            continues = continuations(input_ids, self.is_continuation, self.ends_word)
            if self.segmenter is not None:
                continues = self.segmenter.join(input_ids, continues)
            words = mask_selection.find_words(candidates, continues[candidates])
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
        actions, randoms, shares = actions[: len(ids)], randoms[: len(ids)], self.masking
        random_ids = (randoms * self.vocab_size).astype(np.int32)
        seen = np.where(actions < shares.replace_with_mask, np.int32(self.special.mask), random_ids)
        changed = actions < shares.replace_with_mask + shares.replace_with_random
        masked[positions] = np.where(changed, seen, ids)
        return MaskedExample(masked, positions, ids)


def check_vocabulary(highest: int, *, vocab_size: int) -> None:
    """Raises UserError if a dataset's highest token id is not in the vocabulary."""
    if highest >= vocab_size:
        raise UserError(
            "dataset.token_id",
            f"found token id {highest}, allowed: 0 to {vocab_size - 1}. It has another vocabulary.",
            place="dataset",
        )
