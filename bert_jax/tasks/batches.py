"""Groups fine-tuning rows into padded batches of similar length."""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from bert_jax.data import rng
from bert_jax.data.host_share import ONE_HOST, HostShare
from bert_jax.data.loader.data_position import PositionedBatches
from bert_jax.data.loader.loader import Batches, background_batches
from bert_jax.data.rows.collate import collate_tokens, pad_rows, stack_rows
from bert_jax.inference.lengths import bucket_of, buckets_up_to, choose_lengths, fitting
from bert_jax.model.shape_cost import ShapeCost
from bert_jax.task import Row
from bert_jax.tasks.family import NO_LABEL, Encoded, Split

WEIGHTS: Final = "row_weights"

# Keys of the model inputs in a batch.
INPUTS: Final = ("input_ids", "token_type_ids", "segment_ids")

# Keys of the first sequences, by the key of the others, if the first ones are apart.
FIRST: Final = {name: f"first_{name}" for name in INPUTS}

# The first sequences are apart if that saves this share of the positions, because a program with
# two batches takes longer to compile.
_LEAST_SAVING: Final = 0.1

# Shares of the rows whose first sequences may have a limit of their own.
_SHARES: Final = (0.9, 0.97, 1.0)

# 1 / golden ratio: the fractional parts of its multiples are spread evenly over 0 to 1.
_GOLDEN: Final = 0.6180339887


class PlannedBatch(NamedTuple):
    """The rows of a batch, and their padded length."""

    length: int  # positions per sequence, including padding
    rows: np.ndarray  # indices in the split, int64 [<= batch_size]
    parts: tuple[int, int] | None = None  # positions of the first and of each other sequence


class _Shape(NamedTuple):
    """The padded lengths of a batch, see `PlannedBatch`."""

    length: int
    parts: tuple[int, int] | None = None


class _Groups(NamedTuple):
    """Rows of similar length, and the batches that they fill."""

    keys: np.ndarray  # of each row; rows are sorted by them
    padded: np.ndarray  # of each batch: the smallest key of a shape that its rows fit into
    shapes: Mapping[int, _Shape]  # by key
    positions: float  # of an epoch, divided by the number of sequences of a row


class EpochPlan:
    """Assigns the rows of an epoch to batches.

    Sorts rows by length, and divides them into one group per padded length. Each epoch shuffles the
    rows within each group. Texts of similar length often come from one source, so such a batch is a
    noisier sample than a random batch. To compensate, consecutive batches have very different
    lengths.

    An epoch uses every row once, in ``ceil(rows / batch_size)`` batches. One batch may be smaller
    than `batch_size`. The seed changes the rows of the batches, but not their lengths, so runs with
    different seeds share compiled programs.

    If the first sequences are shorter than the others, as queries are shorter than passages, they
    are padded to a shorter length, which follows from the group. Rows with a long first sequence
    are a group of their own.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        *,
        batch_size: int,
        max_length: int,
        seed: int,
        cost: ShapeCost,
        of_each: np.ndarray | None = None,
    ) -> None:
        """Chooses the padded lengths. `lengths` are the numbers of pieces per row.

        For `of_each`, see `Split.lengths_of_each`.
        """
        self.batch_size = batch_size
        self.steps = -(-len(lengths) // batch_size)
        self._seed, program = seed, cost.program / cost.passes
        # Only the batch with the shortest rows may be smaller than `batch_size`.
        self._ends = len(lengths) - batch_size * np.arange(self.steps)[::-1]
        chosen = choose_lengths(lengths, max_length=max_length, program=program)
        self._groups = self._together(lengths, chosen)
        if of_each is not None:
            parts = np.stack([of_each[:, 0], of_each[:, 1:].max(axis=1)], axis=1)
            sequences, buckets = of_each.shape[1], buckets_up_to(max_length)
            most = np.quantile(parts[:, 0], _SHARES, method="higher").tolist()
            found = [
                self._first_apart(lengths, chosen, parts, limit, buckets, sequences)
                for limit in {bucket_of(each, buckets) for each in most}
            ]
            best = min(found, key=lambda each: each.positions + program * len(each.shapes))
            if best.positions <= (1 - _LEAST_SAVING) * self._groups.positions:
                self._groups = best
        # Padded lengths, equal for all seeds.
        self.shapes = frozenset(self._groups.shapes.values())
        # Mean number of positions per sequence, including padding.
        self.mean_length = self._groups.positions / len(lengths)
        self._planned = functools.lru_cache(maxsize=1)(self._plan)

    def _together(self, lengths: np.ndarray, chosen: Sequence[int]) -> "_Groups":
        """Returns groups by length, whose sequences all have the same padded length."""
        padded = fitting(np.sort(lengths)[self._ends - 1], chosen)
        shapes = {length: _Shape(length) for length in set(padded.tolist())}
        return _Groups(lengths, padded, shapes, float(padded.mean()) * len(lengths))

    def _first_apart(
        self,
        lengths: np.ndarray,
        chosen: Sequence[int],
        parts: np.ndarray,
        limit: int,
        buckets: Sequence[int],
        sequences: int,
    ) -> "_Groups":
        """Returns groups by length, with the first sequences apart.

        Rows whose first sequence is longer than `limit` are a group of their own, the last one.
        """
        longest = chosen[-1]
        keys = np.where(parts[:, 0] > limit, longest + 1, lengths)
        padded = fitting(np.sort(keys)[self._ends - 1], [*chosen, longest + 1])
        shapes: dict[int, _Shape] = {}
        for key in set(padded.tolist()):
            first, other = (bucket_of(most, buckets) for most in parts[keys <= key].max(axis=0))
            shapes[key] = _Shape(min(key, longest), (first, other))
        each = np.asarray([shapes[key].parts for key in padded.tolist()])
        mean = float((each @ [1, sequences - 1]).mean()) / sequences
        return _Groups(keys, padded, shapes, mean * len(lengths))

    def batch(self, step: int) -> PlannedBatch:
        """Returns the batch of a step."""
        epoch, at = divmod(step, self.steps)
        return self._planned(epoch)[at]

    def _plan(self, epoch: int) -> list[PlannedBatch]:
        generator = rng.stream(self._seed, "finetune rows", epoch)
        keys, padded = self._groups.keys, self._groups.padded
        rows = generator.permutation(len(keys))
        rows = rows[np.argsort(keys[rows], kind="stable")]
        groups = np.split(rows, self._ends[np.flatnonzero(np.diff(padded))])
        rows = np.concatenate([generator.permutation(group) for group in groups])
        batches = np.split(rows, self._ends[:-1])
        start = rng.stream(0, "finetune batches", epoch).random()
        order = np.argsort(np.argsort((start + _GOLDEN * np.arange(self.steps)) % 1))
        shapes = [self._groups.shapes[key] for key in padded.tolist()]
        return [PlannedBatch(shapes[at].length, batches[at], shapes[at].parts) for at in order]


class TrainBatches(PositionedBatches):
    """An endless stream of training batches."""

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
        """Plans the epochs.

        `batch_size` is the number of rows over all hosts, padded to a multiple of `unit`. This host
        loads its `share` of each batch. `cost` is the cost of compiling a batch shape.
        """
        self.plan = EpochPlan(
            split.lengths,
            batch_size=batch_size,
            max_length=max_length,
            seed=seed,
            cost=cost,
            of_each=split.lengths_of_each,
        )
        self._split, self._pad_id, self._unit, self._share = split, pad_id, unit, share
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

    def make(self, step: int) -> Row:
        """Returns this host's part of the batch of a step."""
        planned = self.plan.batch(step)
        size = -(-self.plan.batch_size // self._unit) * self._unit
        own = planned.rows[self._share.part(size)]
        return collate(
            self._split,
            own,
            batch_size=size // self._share.count,
            length=planned.length,
            pad_id=self._pad_id,
            parts=planned.parts,
        )

    def batches(self, *, first_step: int, run: range | None = None) -> Batches[Row]:
        """Yields batches from `first_step` on. A background thread prepares them.

        `run` has no effect.
        """
        del run
        return background_batches(self.make, first_step=first_step)


def collate(
    split: Split,
    rows: np.ndarray,
    *,
    batch_size: int,
    length: int,
    pad_id: int,
    parts: tuple[int, int] | None = None,
) -> Row:
    """Returns a batch of labelled rows, padded to `batch_size` with rows of weight 0.

    The batch has the inputs of `collate_inputs`, ``row_weights`` float32 [batch_size], and an array
    per target in `Encoded.targets`. With `parts` (see `PlannedBatch`), the first sequences have the
    keys of `FIRST`, and the inputs, [batch_size, sequences - 1, length], are the others.
    """
    encoded, like = _encoded(split, rows)
    sizes = {"batch_size": batch_size, "pad_id": pad_id}
    if parts is None:
        batch = _inputs(encoded, like, length=length, **sizes)
    else:
        first, batch = (
            _inputs([each.of(part) for each in encoded], like.of(part), length=part_length, **sizes)
            for part, part_length in zip((slice(1), slice(1, None)), parts, strict=True)
        )
        batch = {name: ids.reshape(batch_size, -1, parts[1]) for name, ids in batch.items()}
        batch |= {FIRST[name]: ids for name, ids in first.items()}
    batch[WEIGHTS] = (np.arange(batch_size) < len(rows)).astype(np.float32)
    for name, first in like.targets.items():
        values = [row.targets[name] for row in encoded]
        batch[name] = _targets(values, first, batch_size, length)
    return batch


def collate_inputs(
    split: Split, rows: np.ndarray, *, batch_size: int, length: int, pad_id: int
) -> Row:
    """Returns the model inputs of rows, padded to `batch_size`. The rows may be unlabelled.

    The inputs are ``input_ids``, ``token_type_ids`` and ``segment_ids``: int32 [batch_size,
    length], or [batch_size, choices, length] for multiple choice.
    """
    encoded, like = _encoded(split, rows)
    return _inputs(encoded, like, batch_size=batch_size, length=length, pad_id=pad_id)


def _encoded(split: Split, rows: np.ndarray) -> tuple[list[Encoded], Encoded]:
    """Returns the rows, and a template row for the shapes and targets of padding rows."""
    encoded = [split.row(int(row)) for row in rows]
    return encoded, encoded[0] if encoded else split.row(0)


def _inputs(
    encoded: Sequence[Encoded], like: Encoded, *, batch_size: int, length: int, pad_id: int
) -> dict[str, np.ndarray]:
    choices = len(like.sequences)
    batch = collate_tokens(
        [ids for row in encoded for ids in row.sequences],
        [second for row in encoded for second in row.seconds],
        batch_size=batch_size * choices,
        length=length,
        pad_id=pad_id,
    )
    shape = (batch_size, choices, length) if choices > 1 else (batch_size, length)
    return {name: ids.reshape(shape) for name, ids in batch.items()}


def _targets(
    values: Sequence[np.ndarray | int | float], first: object, batch_size: int, length: int
) -> np.ndarray:
    """Stacks one target over the rows, int32 or float32 [batch_size, ...]; see `Encoded`."""
    like = np.asarray(first)
    dtype = np.int32 if like.dtype.kind in "iub" else np.float32
    if like.ndim == 1 and dtype is np.int32:
        labels = list(map(np.asarray, values))
        return pad_rows(labels, batch_size=batch_size, length=length, fill=NO_LABEL)
    rows = [{"target": np.asarray(value, dtype)} for value in values]
    return stack_rows(rows, batch_size=batch_size, like={"target": like.astype(dtype)})["target"]
