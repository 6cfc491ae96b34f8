"""Which tokens a model has to guess, and what it sees in their place."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
import pydantic

from bert_jax.data.rows.layout import empty_rows, lay_out
from bert_jax.data.rows.mask_selection import (
    choose_spans,
    choose_tokens,
    choose_words,
    find_words,
    geometric_chances,
    ngram_chances,
    tokens_of_spans,
)
from bert_jax.data.rows.word_segmentation import Segmenter
from bert_jax.errors import UserError
from bert_jax.section import Section
from bert_jax.task import Row

if TYPE_CHECKING:
    from bert_jax.data.dataset.reader import Example
    from bert_jax.text.tokenizer import SpecialIds, Tokenizer


MAX_NGRAM: Final = 3
MAX_SPAN: Final = 10
SPAN_STOP: Final = 0.2

# A setting that its unit does not read would be set in vain.
_SETTINGS_OF_UNITS: Final = (
    ("max_words", None, ("ngram", "span")),
    ("span_stop", SPAN_STOP, ("span",)),
    ("segmenter", None, ("whole_word", "ngram", "span")),
)


class MaskingSection(Section):
    """How tokens are masked: 15% of them; 80% become [MASK], 10% a random token, 10% stay.

    The defaults are those of the paper (arXiv 1810.04805, section 3.1).

    Attributes:
        rate: share of an example's tokens to predict, special tokens counted in, as in
            google-research/bert ``create_pretraining_data.py`` (``masked_lm_prob``).
        unit: what is chosen as a whole: ``token``; ``whole_word`` (a word's first piece and the
            continuations that follow it; the release's ``do_whole_word_mask``); ``ngram`` (up to 3
            words, p(n) ∝ 1/n: ALBERT, arXiv 1909.11942); ``span`` (up to 10 words, geometrically
            distributed; all of a span is replaced in the same way: SpanBERT, arXiv 1907.10529).
        max_words: longest ``ngram`` or ``span``; without it, 3 and 10.
        span_stop: chance of a ``span`` to end after each of its words (SpanBERT's p).
        segmenter: ``module:function`` that cuts Chinese text into words, such as ``jieba:lcut``,
            for the units that are made of words; without it each character is one. See
            `bert_jax.data.rows.word_segmentation`.
        replace_with_mask: share of the chosen tokens (spans) that become [MASK].
        replace_with_random: share that become a token drawn uniformly from the whole vocabulary.
            The rest stay as they are and are predicted all the same.
        max_predictions: most predictions in a row (``max_predictions_per_seq``); without it, the
            number that ``rate`` asks of a full row, rounded up.
        static_copies: draw masks for so many epochs of a phase and repeat them, as the 2018 release
            does with its ``dupe_factor`` copies on disk; without it, every epoch has its own.
    """

    rate: float = pydantic.Field(default=0.15, gt=0.0, lt=1.0)
    unit: Literal["token", "whole_word", "ngram", "span"] = "token"
    max_words: int | None = pydantic.Field(default=None, ge=1)
    span_stop: float = pydantic.Field(default=SPAN_STOP, gt=0.0, lt=1.0)
    segmenter: str | None = None
    replace_with_mask: float = pydantic.Field(default=0.8, ge=0.0, le=1.0)
    replace_with_random: float = pydantic.Field(default=0.1, ge=0.0, le=1.0)
    max_predictions: int | None = pydantic.Field(default=None, ge=1)
    static_copies: int | None = pydantic.Field(default=None, ge=1)

    @pydantic.model_validator(mode="after")
    def _shares_fit(self) -> MaskingSection:
        both = self.replace_with_mask + self.replace_with_random
        if both > 1.0 + 1e-9:
            raise ValueError(
                f"replace_with_mask + replace_with_random: found {both:g}, allowed: at most 1 "
                "(the rest of the chosen tokens stays as it is)"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _settings_fit_unit(self) -> MaskingSection:
        for name, default, units in _SETTINGS_OF_UNITS:
            found = getattr(self, name)
            if found != default and self.unit not in units:
                raise ValueError(
                    f"{name}: found {found}, allowed: only with unit {' or '.join(units)}, not "
                    f"with {self.unit}"
                )
        return self

    @property
    def span_chances(self) -> np.ndarray:
        """Chances [max_words] of a span of 1, 2, … words, for ``ngram`` and ``span``."""
        if self.unit == "ngram":
            return ngram_chances(self.max_words or MAX_NGRAM)
        return geometric_chances(self.span_stop, self.max_words or MAX_SPAN)

    def predictions(self, seq_length: int) -> int:
        """Returns the slots for predictions in a row: 512 -> 77, 128 -> 20 at 15%."""
        if self.max_predictions is not None:
            return self.max_predictions
        return math.ceil(self.rate * seq_length)


class Masked(NamedTuple):
    """A masked sequence of n tokens with k predictions, in the order of their positions."""

    input_ids: np.ndarray  # int32 [n]: what the model sees
    positions: np.ndarray  # int [k]: where it has to predict, ascending
    ids: np.ndarray  # int32 [k]: what stood there


def mask_tokens(
    input_ids: np.ndarray,
    rng: np.random.Generator,
    *,
    masking: MaskingSection,
    max_predictions: int,
    special: SpecialIds,
    vocab_size: int,
    is_continuation: np.ndarray,
    segmenter: Segmenter | None = None,
) -> Masked:
    """Chooses the tokens to predict in one example and replaces them.

    ``[CLS] the dog bark ##ed [SEP]`` -> ``[CLS] the [MASK] bark ##ed [SEP]``, positions ``[2]``,
    ids ``[dog]``. The number chosen is the release's: ``min(max_predictions, max(1, round(n *
    rate)))``, [CLS] and [SEP] counted in n but never chosen. Whole words and spans may fall short
    of it: a word that would go beyond it is passed over for a shorter one.

    Args:
        input_ids: [n] ids of an unmasked example, of any integer type.
        rng: the stream of this example; exactly one array is drawn from it.
        masking: rate, unit and shares.
        max_predictions: upper bound on the number of predictions.
        special: ids of the special tokens; ``cls`` and ``sep`` are never chosen.
        vocab_size: random replacements are drawn from ``0 .. vocab_size - 1``, [UNK], [CLS] and
            their like included, as in the release.
        is_continuation: bool [vocab_size], true for pieces that continue a word; read for the units
            that are made of words.
        segmenter: finds the words of Chinese text for the same units.

    Returns:
        The masked sequence; ``input_ids`` itself is not changed.

    Raises:
        UserError: if an id lies beyond the vocabulary.
    """
    if (highest := int(input_ids.max())) >= vocab_size:
        raise UserError(
            f"dataset: found token id {highest}, allowed: 0 to {vocab_size - 1}; it was made with "
            "another vocabulary than the run's"
        )
    budget = min(max_predictions, max(1, round(len(input_ids) * masking.rate)))
    candidates = np.flatnonzero((input_ids != special.cls) & (input_ids != special.sep))
    total = len(candidates)
    budget = min(budget, total)
    sized = total if masking.unit in ("ngram", "span") else 0
    # Uniform doubles only: NumPy keeps `random` stable between versions, `choice` and `permutation`
    # less so.
    draws = rng.random(total + 2 * budget + sized)
    keys, actions = draws[:total], draws[total : total + budget]
    randoms, sizes = draws[total + budget :][:budget], draws[total + 2 * budget :]
    if not budget:
        positions = candidates
    elif masking.unit == "token":
        positions = candidates[choose_tokens(keys, budget)]
    else:
        continues = is_continuation[input_ids]
        if segmenter is not None:
            continues = segmenter.join(input_ids, continues)
        words = find_words(candidates, continues[candidates])
        keys, sizes = keys[: len(words.starts)], sizes[: len(words.starts)]
        if masking.unit == "whole_word":
            positions = candidates[choose_words(words, keys, budget)]
        else:
            spans = choose_spans(
                words, keys=keys, sizes=sizes, chances=masking.span_chances, budget=budget
            )
            tokens, span_of = tokens_of_spans(spans, total=total)
            positions = candidates[tokens]
            if masking.unit == "span":  # SpanBERT, section 3.1: replaced "at the span level"
                actions = actions[span_of]
    count = len(positions)
    masked = input_ids.astype(np.int32)
    ids = masked[positions]
    masked[positions] = _replace(
        ids,
        actions=actions[:count],
        random_ids=(randoms[:count] * vocab_size).astype(np.int32),
        mask=special.mask,
        masking=masking,
    )
    return Masked(masked, positions, ids)


def _replace(
    ids: np.ndarray,
    *,
    actions: np.ndarray,
    random_ids: np.ndarray,
    mask: int,
    masking: MaskingSection,
) -> np.ndarray:
    """Returns what stands in the place of each id: [MASK], a random id, or the id itself."""
    seen = np.where(actions < masking.replace_with_mask, np.int32(mask), random_ids)
    changed = actions < masking.replace_with_mask + masking.replace_with_random
    return np.where(changed, seen, ids)


@dataclasses.dataclass(frozen=True)
class MaskedRow:
    """Makes rows of one example each, masked: what an objective hands to the loader.

    `bert_jax.data.rows.packing.PackedRow` makes rows of several out of it.

    Attributes:
        seq_length: L, tokens in a row.
        max_predictions: P, slots for predictions in a row.
        masking: rate, unit and shares.
        special: ids of the special tokens.
        vocab_size: random replacements are drawn from all of the vocabulary.
        is_continuation: bool [vocab_size], true for pieces that continue a word.
        segmenter: finds the words of Chinese text.
    """

    seq_length: int
    max_predictions: int
    masking: MaskingSection
    special: SpecialIds
    vocab_size: int
    is_continuation: np.ndarray = dataclasses.field(repr=False, compare=False)
    segmenter: Segmenter | None = None

    @classmethod
    def from_tokenizer(
        cls, tokenizer: Tokenizer, *, seq_length: int, masking: MaskingSection
    ) -> MaskedRow:
        """Returns the row maker for a tokenizer, with ``masking.predictions(seq_length)`` slots.

        Raises:
            UserError: there is no such segmenter.
        """
        segmenter = None
        if masking.segmenter is not None:
            pieces = tokenizer.pieces(range(tokenizer.vocab_size))
            segmenter = Segmenter.create(masking.segmenter, pieces)
        return cls(
            seq_length=seq_length,
            max_predictions=masking.predictions(seq_length),
            masking=masking,
            special=tokenizer.special,
            vocab_size=tokenizer.vocab_size,
            is_continuation=np.asarray(tokenizer.is_continuation, bool),
            segmenter=segmenter,
        )

    def mask(self, input_ids: np.ndarray, rng: np.random.Generator) -> Masked:
        """Masks one example of n tokens as the row maker is set up: see :func:`mask_tokens`."""
        return mask_tokens(
            input_ids,
            rng,
            masking=self.masking,
            max_predictions=self.max_predictions,
            special=self.special,
            vocab_size=self.vocab_size,
            is_continuation=self.is_continuation,
            segmenter=self.segmenter,
        )

    def __call__(self, record: Example, rng: np.random.Generator) -> Row:
        """Returns one row of an example of at most ``seq_length`` tokens.

        Args:
            record: ``[CLS] A [SEP] B [SEP]`` or ``[CLS] A [SEP]``, unmasked, of n tokens.
            rng: the stream of this example in this epoch.

        Returns:
            The arrays of `empty_rows` with E = 1, filled as `lay_out` does.
        """
        row = empty_rows(
            seq_length=self.seq_length,
            predictions=self.max_predictions,
            max_examples=1,
            pad=self.special.pad,
        )
        lay_out(row, [record], [self.mask(record.input_ids, rng)])
        return row

    def fingerprint(self) -> dict[str, str | int | float]:
        """Returns what rows depend on beside the dataset and the seed, for the data position."""
        masking = self.masking
        optional = {name: getattr(masking, name) for name in ("segmenter", "static_copies")}
        if masking.unit in ("ngram", "span"):
            optional["chances"] = ",".join(f"{chance:.6g}" for chance in masking.span_chances)
        return {
            "seq_length": self.seq_length,
            "packing": "none",
            "masking.max_predictions": self.max_predictions,
            "masking.rate": masking.rate,
            "masking.unit": masking.unit,
            "masking.replace_with_mask": masking.replace_with_mask,
            "masking.replace_with_random": masking.replace_with_random,
            **{f"masking.{name}": value for name, value in optional.items() if value is not None},
        }
