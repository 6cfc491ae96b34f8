"""Parameters for a vocabulary with new pieces."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.task import Params


def grow_vocabulary(
    params: Params,
    axes: dict[str, Any],
    *,
    pieces: int,
    origins: Sequence[Sequence[int]],
    padded_size: int,
) -> Params:
    """Returns parameters with rows for new pieces, as NumPy arrays.

    Changes every parameter with the logical axis ``vocab``: the embedding and the bias of the MLM
    head. The row of a new piece is the mean of the rows of the pieces that spelled it so far. All
    other rows stay bit for bit.

    Args:
        params: float32 arrays in nested dicts.
        axes: logical axes of each parameter, nested like `params`.
        pieces: number of pieces so far. The new pieces have the following ids.
        origins: ids of the earlier pieces of each new piece.
        padded_size: rows of the grown parameters. Rows without a piece are zero if they are new.
    """

    def grow(value: Any, names: Sequence[str | None]) -> Any:
        if "vocab" not in names:
            return value
        rows = np.moveaxis(np.asarray(value), names.index("vocab"), 0)
        grown = np.zeros((max(padded_size, len(rows)), *rows.shape[1:]), rows.dtype)
        grown[: len(rows)] = rows
        for number, ids in enumerate(origins, start=pieces):
            grown[number] = rows[list(ids)].mean(axis=0)
        return np.ascontiguousarray(np.moveaxis(grown, 0, names.index("vocab")))

    return jax.tree.map(grow, params, axes, is_leaf=lambda node: not isinstance(node, dict))
