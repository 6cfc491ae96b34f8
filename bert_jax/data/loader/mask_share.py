"""Measures how many of the wanted predictions the masks of a dataset have."""

from collections.abc import Iterable
from typing import Final, NamedTuple, Self

import numpy as np

from bert_jax.data.loader.batch_maker import ExampleSequence
from bert_jax.data.rng import stream
from bert_jax.data.rows.masking import TokenMasker
from bert_jax.data.rows.masking_transform import MaskingTransform
from bert_jax.task import RowTransform

_LOW: Final = 0.9
_SAMPLE: Final = 256  # maximum number of examples


class MaskShare(NamedTuple):
    """Predictions of masked examples. Whole words and spans may miss the wanted number.

    A word with more pieces than the number of predictions is never masked.
    """

    unit: str  # unit of masking
    predictions: int
    wanted: int  # number of predictions at the masking rate
    without: int  # number of examples without a prediction
    examples: int

    @classmethod
    def of(cls, examples: Iterable[np.ndarray], masker: TokenMasker, *, seed: int) -> Self:
        """Masks examples, given by their ids, and counts their predictions."""
        wanted, found = [], []
        for number, input_ids in enumerate(examples):
            wanted.append(masker.wanted(len(input_ids), len(masker.candidates(input_ids))))
            found.append(len(masker(input_ids, stream(seed, "mask share", number)).ids))
        return cls(masker.masking.unit, sum(found), sum(wanted), found.count(0), len(found))

    @property
    def low(self) -> bool:
        """Whether less than 90% of the wanted predictions are made."""
        return self.predictions < _LOW * self.wanted

    def describe(self) -> str:
        """Returns a sentence, with a remedy if the share is low."""
        made = f"{self.unit} masks {self.predictions / max(self.wanted, 1):.1%} of its budget"
        if not self.low:
            return made
        return (
            f"{made}, and nothing in {self.without / self.examples:.1%} of the examples: words "
            "have too many pieces. Set objective.masking.unit: token, or train a vocabulary on "
            "this text."
        )


def measure_masks(dataset: ExampleSequence, rows: RowTransform, *, seed: int) -> MaskShare | None:
    """Masks examples spread evenly over a dataset. Returns None if `rows` mask no words."""
    if not isinstance(rows, MaskingTransform) or rows.masker.masking.unit == "token":
        return None
    count = min(len(dataset), _SAMPLE)
    found = dataset.__getitems__([at * len(dataset) // count for at in range(count)])
    return MaskShare.of((each.input_ids for each in found), rows.masker, seed=seed)
