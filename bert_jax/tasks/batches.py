"""Fine-tuning rows of different lengths as padded batches."""

import functools
import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from bert_jax.data.host_share import ONE_HOST, HostShare
from bert_jax.data.loader.batch_maker import attach
from bert_jax.data.loader.data_position import PositionedBatches
from bert_jax.data.loader.loader import Batches, background_batches
from bert_jax.data.rows.collate import collate_tokens, pad_rows, stack_rows
from bert_jax.model.shape_cost import ShapeCost
from bert_jax.task import Row
from bert_jax.tasks.epoch_plan import EpochPlan
from bert_jax.tasks.family import NO_LABEL, Encoded, Split

WEIGHTS: Final = "row_weights"

# What the model reads of a batch; for multiple choice, each has a row for every choice.
INPUTS: Final = ("input_ids", "token_type_ids", "segment_ids")


class TrainBatches(PositionedBatches):
    """The batches of a fine-tuning run, epoch after epoch, as the train loop takes them."""

    def __init__(
        self,
        split: Split,
        *,
        batch_size: int,
        max_length: int,
        seed: int,
        pad_id: int,
        unit: int = 1,
        share: HostShare = ONE_HOST,
        cost: ShapeCost,
    ) -> None:
        """Plans the first epoch.

        `batch_size` counts the rows of all hosts, of which this one makes its share; each batch is
        filled up to a multiple of `unit` rows. The cost is that of a shape, see `EpochPlan`.
        """
        self.plan = EpochPlan(
            split.lengths, batch_size=batch_size, max_length=max_length, seed=seed, cost=cost
        )
        self._split, self._pad_id, self._unit = split, pad_id, unit
        self._share = share
        lengths = hashlib.blake2b(split.lengths.tobytes(), digest_size=8).hexdigest()
        super().__init__(
            {
                "seed": seed,
                "train": split.fingerprint,
                "lengths": lengths,
                "max_length": max_length,
            },
            batch_size=batch_size,
            order=("seed", "lengths", "max_length"),
        )

    def make(self, step: int, *, with_examples: bool = False) -> Row:
        """Returns this host's rows of a step's batch."""
        planned = self.plan.batch(step)
        size = -(-self.plan.batch_size // self._unit) * self._unit
        own = planned.rows[self._share.part(size)]
        batch = collate(
            self._split,
            own,
            batch_size=size // self._share.count,
            length=planned.length,
            pad_id=self._pad_id,
        )
        if not with_examples:
            return batch
        return attach(batch, own[:, None].tolist(), epochs=[step // self.plan.steps] * len(own))

    def batches(self, *, first_step: int, with_examples: bool = False) -> Batches[Row]:
        """Returns the endless stream of batches from a step on, made ahead in the background.

        `with_examples`: each says which rows of the split it is made of.
        """
        make = functools.partial(self.make, with_examples=with_examples)
        return background_batches(make, first_step=first_step)


def collate(split: Split, rows: np.ndarray, *, batch_size: int, length: int, pad_id: int) -> Row:
    """Returns at most `batch_size` labelled rows of a split, filled up with rows of weight 0.

    `INPUTS`, as `collate_inputs` returns them; ``row_weights`` float32 [batch_size]; and the
    targets by name.
    """
    encoded = [split.row(int(row)) for row in rows]
    like = encoded[0] if encoded else split.row(0)  # for the targets' names and shapes
    batch = _inputs(encoded, like, batch_size=batch_size, length=length, pad_id=pad_id)
    weights = (np.arange(batch_size) < len(rows)).astype(np.float32)
    targets = {
        name: _targets([row.targets[name] for row in encoded], first, batch_size, length)
        for name, first in like.targets.items()
    }
    return batch | {WEIGHTS: weights} | targets


def collate_inputs(
    split: Split, rows: np.ndarray, *, batch_size: int, length: int, pad_id: int
) -> Row:
    """Returns the inputs of at most `batch_size` rows of a split, labelled or not.

    ``input_ids``, ``token_type_ids``, ``segment_ids``: int32 [batch_size, length], or [batch_size,
    choices, length].
    """
    encoded = [split.row(int(row)) for row in rows]
    like = encoded[0] if encoded else split.row(0)  # a process may have no row of a last batch
    return _inputs(encoded, like, batch_size=batch_size, length=length, pad_id=pad_id)


def _inputs(
    encoded: Sequence[Encoded], like: Encoded, *, batch_size: int, length: int, pad_id: int
) -> Row:
    choices = len(like.sequences)
    batch = collate_tokens(
        [ids for row in encoded for ids in row.sequences],
        [second for row in encoded for second in row.seconds],
        batch_size=batch_size * choices,
        length=length,
        pad_id=pad_id,
    )
    if choices == 1:
        return batch
    return {name: ids.reshape(batch_size, choices, length) for name, ids in batch.items()}


def _targets(
    values: Sequence[np.ndarray | int | float], first: object, batch_size: int, length: int
) -> np.ndarray:
    """Returns one target of all rows: int32 or float32 [batch_size, ...], see `Encoded`."""
    like = np.asarray(first)
    dtype = np.int32 if like.dtype.kind in "iub" else np.float32
    if like.ndim == 1 and dtype is np.int32:
        labels = list(map(np.asarray, values))
        return pad_rows(labels, batch_size=batch_size, length=length, fill=NO_LABEL)
    rows = [{"target": np.asarray(value, dtype)} for value in values]
    return stack_rows(rows, batch_size=batch_size, like={"target": like.astype(dtype)})["target"]
