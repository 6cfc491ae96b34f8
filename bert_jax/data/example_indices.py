"""Which examples a batch is made of. Travels with it as far as the host, never to a device."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from bert_jax.task import HostBatch, Row

_KEY: Final = "example_indices"
_NONE: Final = -1


def attach(batch: Row, indices: Sequence[Sequence[int]], *, epochs: Sequence[int]) -> Row:
    """Returns a batch with what it was made of.

    Each row has the dataset's indices of its examples, and the epoch that it belongs to.
    """
    table = np.full((len(indices), 1 + max(map(len, indices), default=0)), _NONE, np.int64)
    for row, (epoch, examples) in enumerate(zip(epochs, indices, strict=True)):
        table[row, : 1 + len(examples)] = epoch, *examples
    return {**batch, _KEY: table}


def detach(batch: HostBatch) -> tuple[HostBatch, dict[int, list[int]] | None]:
    """Returns a batch without what `attach` added, and that: the indices by epoch, row by row.

    None where nothing was added.
    """
    parts = batch if isinstance(batch, tuple) else (batch,)
    if _KEY not in parts[0]:
        return batch, None
    found: dict[int, list[int]] = {}
    for epoch, *examples in (row for part in parts for row in part[_KEY].tolist()):
        found.setdefault(epoch, []).extend(index for index in examples if index != _NONE)
    bare = tuple({name: part[name] for name in part if name != _KEY} for part in parts)
    return bare if isinstance(batch, tuple) else bare[0], found
