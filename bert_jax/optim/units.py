"""Units of a model, from its input up: each is frozen and slowed down as a whole."""

import re
from collections.abc import Sequence
from typing import Any, Final

import jax
import numpy as np

from bert_jax.errors import UserError, did_you_mean
from bert_jax.parallel.rules import LogicalAxes

_LAYERS: Final = re.compile(r"layers\.([0-9]+)(?:-([0-9]+))?")


def unit_names(depth: int) -> tuple[str, ...]:
    """Returns the units in order.

    2 → ``("embeddings", "layers.0", "layers.1", "pooler", "heads")``

    Every array "by unit" of this package has one entry for each of these.
    """
    return ("embeddings", *(f"layers.{layer}" for layer in range(depth)), "pooler", "heads")


def unit_heights(depth: int) -> np.ndarray:
    """Returns how far below the heads each unit lies: 2 → ``[3, 2, 1, 0, 0]``, int32 [units]."""
    return np.array([depth + 1, *range(depth, 0, -1), 0, 0], np.int32)


def unit_of_parameters(axes: Any, *, depth: int) -> Any:
    """Returns which unit each parameter belongs to.

    ``{"encoder": {"layers": {"kernel": ("layers", "embed", "mlp")}}}`` of two layers →
    ``{"encoder": {"layers": {"kernel": [[[1]], [[2]]]}}}``

    Returns:
        The same nested dicts of indices into `unit_names`, int32, in shapes that broadcast
        against the parameters: [] or, where a parameter holds all layers, [depth, 1, …].

    Raises:
        ValueError: a parameter of the encoder is neither in its embeddings nor in its layers.
    """

    def place(path: Any, names: LogicalAxes) -> np.ndarray:
        keys = [entry.key for entry in path]
        if keys[0] == "pooler":
            return np.array(depth + 1, np.int32)
        if keys[0] != "encoder":
            return np.array(depth + 2, np.int32)
        if keys[1] == "embeddings":
            return np.array(0, np.int32)
        if keys[1] != "layers":
            raise ValueError(f"a parameter of the encoder is of no unit: {'/'.join(keys)}")
        shape = [depth if name == "layers" else 1 for name in names]
        return np.arange(1, depth + 1, dtype=np.int32).reshape(shape)

    return jax.tree_util.tree_map_with_path(
        place, axes, is_leaf=lambda node: isinstance(node, tuple)
    )


def frozen_units(names: Sequence[str], *, depth: int) -> np.ndarray:
    """Returns which units a list of names freezes: bool [units].

    ``("embeddings", "layers.0-1")`` of three layers → ``[True, True, True, False, False, False]``

    The names are "embeddings", "encoder" (the embeddings and all layers), "pooler", "layers.N" or
    "layers.N-M" (from 0, both included).

    Raises:
        UserError: a name that is none of these.
    """
    frozen = np.zeros(depth + 3, np.bool_)
    for name in names:
        frozen[_span(name, depth)] = True
    return frozen


def _span(name: str, depth: int) -> slice:
    """Returns the units of one name."""
    named = {
        "embeddings": slice(0, 1),
        "encoder": slice(0, depth + 1),
        "pooler": slice(depth + 1, depth + 2),
    }
    if name in named:
        return named[name]
    match = _LAYERS.fullmatch(name)
    if match is not None:
        first = int(match[1])
        last = int(match[2]) if match[2] is not None else first
        if first <= last < depth:
            return slice(first + 1, last + 2)
    # Digits that only lie out of range have no nearest right name worth a guess.
    near = "" if match else did_you_mean(name, (*named, *unit_names(depth)[1:-2]))
    raise UserError(
        f'optimizer.freeze: found "{name}", allowed: {", ".join(named)}, layers.N or layers.N-M '
        f"with N ≤ M from 0 to {depth - 1}{near}"
    )
