"""A dataset in memory and helpers for its loader. Worker processes import this module."""

import dataclasses

import numpy as np

from bert_jax.data.dataset.reader import Example
from bert_jax.data.loader.loader import Loader
from bert_jax.data.loader.section import LoaderSection
from bert_jax.data.rows.masking import MaskingSection, TokenMasker
from bert_jax.data.rows.masking_transform import MaskingTransform
from bert_jax.errors import UserError
from bert_jax.text import SpecialIds

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
VOCAB_SIZE = 1000
MAX_EXAMPLES = 4  # maximum number of examples in a packed row
SEQ_LENGTH = 32

Batch = dict[str, np.ndarray]


class MemoryDataset:
    """Examples that contain their index: the first token after [CLS] is ``100 + index``."""

    def __init__(
        self, count: int, *, fingerprint: str = "a" * 8, damaged: int | None = None
    ) -> None:
        self.fingerprint = fingerprint
        self.lengths = 6 + np.arange(count) % (SEQ_LENGTH - 5)
        self._damaged = damaged

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitems__(self, indices: list[int]) -> list[Example]:
        return [self[index] for index in indices]

    def __getitem__(self, index: int) -> Example:
        if index == self._damaged:
            raise UserError("dataset.shard_damaged", "damaged", place="train-00003")
        ids = np.full(self.lengths[index], 50, np.uint16)
        ids[[0, 1, 3, -1]] = SPECIAL.cls, 100 + index, SPECIAL.sep, SPECIAL.sep
        return Example(ids, 4, index % 2)


def row_maker(**masking) -> MaskingTransform:
    section = MaskingSection(**masking)
    masker = TokenMasker(
        masking=section,
        max_predictions=section.predictions(SEQ_LENGTH),
        special=SPECIAL,
        vocab_size=VOCAB_SIZE,
        is_continuation=np.zeros(VOCAB_SIZE, bool),
    )
    return MaskingTransform(SEQ_LENGTH, masker)


def make_loader(dataset: MemoryDataset, *, batch_size: int, seed: int = 7, **kwargs) -> Loader:
    options = {"transform": row_maker(), "section": LoaderSection(), **kwargs}
    return Loader(dataset, batch_size=batch_size, seed=seed, **options)


def take(
    loader: Loader, count: int, *, first_step: int = 0, run: range | None = None
) -> list[Batch]:
    with loader.batches(first_step=first_step, run=run) as batches:
        return [next(batches) for _ in range(count)]


def join(batches: list[Batch]) -> Batch:
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def assert_equal(left: Batch, right: Batch) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def packed_loader(dataset: MemoryDataset, *, batch_size: int, **kwargs) -> Loader:
    """Like `make_loader`, with up to four examples per row."""
    transform = dataclasses.replace(row_maker(), max_examples=MAX_EXAMPLES)
    return make_loader(dataset, batch_size=batch_size, **{"transform": transform, **kwargs})
