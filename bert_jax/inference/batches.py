"""Plans the batches of rows with different lengths."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.inference.lengths import bucket_of


class BatchShape(NamedTuple):
    """Rows and padded length of a batch."""

    rows: int
    length: int


class PlannedBatch(NamedTuple):
    """The rows of a batch. Rows that are missing to the shape are padding."""

    rows: np.ndarray  # indices in the window, int64
    shape: BatchShape


def plan_batches(lengths: np.ndarray, shapes: Sequence[BatchShape]) -> list[PlannedBatch]:
    """Divides rows into batches, longest first.

    The batches depend on nothing but the arguments, so that the same rows have the same results on
    every engine. Only the last batch can have padding rows.

    Args:
        lengths: number of tokens of each row, int [rows].
        shapes: shapes in ascending order of lengths. The last one holds the longest row.
    """
    buckets = [shape.length for shape in shapes]
    order = np.argsort(-lengths, kind="stable")
    batches, start = [], 0
    while start < len(order):
        shape = shapes[buckets.index(bucket_of(int(lengths[order[start]]), buckets))]
        rows = order[start : start + shape.rows]
        batches.append(PlannedBatch(rows, shape))
        start += len(rows)
    return batches
