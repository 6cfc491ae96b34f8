"""Which tokens a model has to guess, and what it sees in their place."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pydantic

from bert_jax.errors import UserError
from bert_jax.section import Section
from bert_jax.task import Row

if TYPE_CHECKING:
    from bert_jax.data.records import Example
    from bert_jax.text.tokenizer import SpecialIds, Tokenizer


class MaskingSection(Section):
    """How tokens are masked: 15% of them; 80% become [MASK], 10% a random token, 10% stay.

    The defaults are those of the paper (arXiv 1810.04805, section 3.1).

    Attributes:
        rate: share of an example's tokens to predict, special tokens counted in, as in
            google-research/bert ``create_pretraining_data.py`` (``masked_lm_prob``).
        unit: what is chosen as a whole: ``token``, or ``whole_word`` (a word's first piece and the
            continuations that follow it; the release's ``do_whole_word_mask``).
        replace_with_mask: share of the chosen tokens that become [MASK].
        replace_with_random: share that become a token drawn uniformly from the whole vocabulary.
            The rest stay as they are and are predicted all the same.
        max_predictions: most predictions in a row (``max_predictions_per_seq``); without it, the
            number that ``rate`` asks of a full row, rounded up.
    """

    rate: float = pydantic.Field(default=0.15, gt=0.0, lt=1.0)
    unit: Literal["token", "whole_word"] = "token"
    replace_with_mask: float = pydantic.Field(default=0.8, ge=0.0, le=1.0)
    replace_with_random: float = pydantic.Field(default=0.1, ge=0.0, le=1.0)
    max_predictions: int | None = pydantic.Field(default=None, ge=1)

    @pydantic.model_validator(mode="after")
    def _shares_fit(self) -> MaskingSection:
        both = self.replace_with_mask + self.replace_with_random
        if both > 1.0 + 1e-9:
            raise ValueError(
                f"replace_with_mask + replace_with_random: found {both:g}, allowed: at most 1 "
                "(the rest of the chosen tokens stays as it is)"
            )
        return self

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
) -> Masked:
    """Chooses the tokens to predict in one example and replaces them.

    ``[CLS] the dog bark ##ed [SEP]`` -> ``[CLS] the [MASK] bark ##ed [SEP]``, positions ``[2]``,
    ids ``[dog]``. The number chosen is the release's: ``min(max_predictions, max(1, round(n *
    rate)))``, [CLS] and [SEP] counted in n but never chosen. Whole words may fall short of it: a
    word that would go beyond it is passed over for a shorter one.

    Args:
        input_ids: [n] ids of an unmasked example, of any integer type.
        rng: the stream of this example; exactly one array is drawn from it.
        masking: rate, unit and shares.
        max_predictions: upper bound on the number of predictions.
        special: ids of the special tokens; ``cls`` and ``sep`` are never chosen.
        vocab_size: random replacements are drawn from ``0 .. vocab_size - 1``, [UNK], [CLS] and
            their like included, as in the release.
        is_continuation: bool [vocab_size], true for pieces that continue a word; read for whole
            words.

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
    # Uniform doubles only: NumPy keeps `random` stable between versions, `choice` and `permutation`
    # less so.
    draws = rng.random(total + 2 * budget)
    if masking.unit == "whole_word":
        positions = _choose_words(input_ids, candidates, draws[:total], budget, is_continuation)
    else:
        positions = _choose_tokens(candidates, draws[:total], budget)
    count = len(positions)
    masked = input_ids.astype(np.int32)
    ids = masked[positions]
    masked[positions] = _replace(
        ids,
        actions=draws[total : total + count],
        random_ids=(draws[total + budget :][:count] * vocab_size).astype(np.int32),
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


def _choose_tokens(candidates: np.ndarray, keys: np.ndarray, budget: int) -> np.ndarray:
    """Returns ``budget`` of the candidates, each as likely as any other, in ascending order."""
    if not budget:
        return candidates[:0]
    chosen = np.zeros(len(candidates), bool)
    chosen[keys.argpartition(budget - 1)[:budget]] = True
    return candidates[chosen]


def _choose_words(
    input_ids: np.ndarray,
    candidates: np.ndarray,
    keys: np.ndarray,
    budget: int,
    is_continuation: np.ndarray,
) -> np.ndarray:
    """Returns the positions of words drawn at random, as many as fit into ``budget``, ascending.

    A word ends where a special token stands. The release lets a continuation that opens the second
    span join the last word of the first across [SEP]; here it is a word of its own.
    """
    if not budget:
        return candidates[:0]
    opens = ~is_continuation[input_ids[candidates]]
    opens[0] = True
    opens[1:] |= candidates[1:] != candidates[:-1] + 1
    starts = np.flatnonzero(opens)
    lengths = np.empty_like(starts)
    np.subtract(starts[1:], starts[:-1], out=lengths[:-1])
    lengths[-1] = len(candidates) - starts[-1]
    order = keys[: len(starts)].argsort()
    ordered = lengths[order]
    ends = ordered.cumsum()
    fitting = int(ends.searchsorted(budget, side="right"))
    left = budget - (int(ends[fitting - 1]) if fitting else 0)
    chosen = np.zeros(len(starts), bool)
    chosen[order[:fitting]] = True
    # The next word is too long, or there is none: of those after it, take the ones that still fit.
    for at in (fitting + np.flatnonzero(ordered[fitting:] <= left)).tolist() if left else ():
        if ordered[at] <= left:
            chosen[order[at]] = True
            left -= int(ordered[at])
            if not left:
                break
    return candidates[chosen.repeat(lengths)]


@dataclasses.dataclass(frozen=True)
class MaskedRow:
    """Makes rows of one example each, masked: what an objective hands to the loader.

    The layout leaves room for several examples in a row: ``segment_ids`` say which example a token
    belongs to, and what there is once per example has a trailing axis E, which is 1 here.

    Attributes:
        seq_length: L, tokens in a row.
        max_predictions: P, slots for predictions in a row.
        masking: rate, unit and shares.
        special: ids of the special tokens.
        vocab_size: random replacements are drawn from all of the vocabulary.
        is_continuation: bool [vocab_size], true for pieces that continue a word.
    """

    seq_length: int
    max_predictions: int
    masking: MaskingSection
    special: SpecialIds
    vocab_size: int
    is_continuation: np.ndarray = dataclasses.field(repr=False, compare=False)

    @classmethod
    def from_tokenizer(
        cls, tokenizer: Tokenizer, *, seq_length: int, masking: MaskingSection
    ) -> MaskedRow:
        """Returns the row maker for a tokenizer, with ``masking.predictions(seq_length)`` slots."""
        return cls(
            seq_length=seq_length,
            max_predictions=masking.predictions(seq_length),
            masking=masking,
            special=tokenizer.special,
            vocab_size=tokenizer.vocab_size,
            is_continuation=np.asarray(tokenizer.is_continuation, bool),
        )

    def __call__(self, record: Example, rng: np.random.Generator) -> Row:
        """Returns one row of an example of at most ``seq_length`` tokens.

        Args:
            record: ``[CLS] A [SEP] B [SEP]``, unmasked, of n tokens.
            rng: the stream of this example in this epoch.

        Returns:
            int32 ``input_ids``, ``token_type_ids`` (0 for ``[CLS] A [SEP]``, 1 for ``B [SEP]``) and
            ``segment_ids`` (1 for the example, 0 for padding), each [L]; int32
            ``masked_lm_positions`` and ``masked_lm_ids`` and float32 ``masked_lm_weights`` (1 real,
            0 padding), each [P]; int32 ``next_sentence_labels`` and ``cls_positions`` and float32
            ``next_sentence_weights``, each [E=1].
        """
        masked = mask_tokens(
            record.input_ids,
            rng,
            masking=self.masking,
            max_predictions=self.max_predictions,
            special=self.special,
            vocab_size=self.vocab_size,
            is_continuation=self.is_continuation,
        )
        length, count = len(masked.input_ids), len(masked.positions)
        input_ids = np.full(self.seq_length, self.special.pad, np.int32)
        input_ids[:length] = masked.input_ids
        token_type_ids = np.zeros(self.seq_length, np.int32)
        token_type_ids[record.first_length : length] = 1
        segment_ids = np.zeros(self.seq_length, np.int32)
        segment_ids[:length] = 1
        positions = np.zeros(self.max_predictions, np.int32)
        positions[:count] = masked.positions
        ids = np.zeros(self.max_predictions, np.int32)
        ids[:count] = masked.ids
        weights = np.zeros(self.max_predictions, np.float32)
        weights[:count] = 1.0
        return {
            "input_ids": input_ids,
            "token_type_ids": token_type_ids,
            "segment_ids": segment_ids,
            "masked_lm_positions": positions,
            "masked_lm_ids": ids,
            "masked_lm_weights": weights,
            "next_sentence_labels": np.array([record.next_sentence_label], np.int32),
            "cls_positions": np.zeros(1, np.int32),
            "next_sentence_weights": np.ones(1, np.float32),
        }

    def fingerprint(self) -> dict[str, str | int | float]:
        """Returns what rows depend on beside the dataset and the seed, for the data position."""
        return {
            "seq_length": self.seq_length,
            "packing": "none",
            "masking.max_predictions": self.max_predictions,
            "masking.rate": self.masking.rate,
            "masking.unit": self.masking.unit,
            "masking.replace_with_mask": self.masking.replace_with_mask,
            "masking.replace_with_random": self.masking.replace_with_random,
        }
