"""One table of names per format, read in both directions.

Our parameters are a nested dict whose layers are stacked along a leading axis and whose attention
kernels keep heads and head columns apart. Others keep a matrix per layer. All that differs is the
name, the layer's slice, the joining of axes, a transposition, and the rows that pad the vocabulary:
a table says these for every tensor, and the functions here move the numbers either way.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import ml_dtypes
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.errors import UserError, did_you_mean

Params = Any  # nested dict of arrays, or of anything with a shape

STACKED = "encoder/layers/"

# Widening these to float32 loses nothing; anything else is not a weight as we know them.
READABLE = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


class Entry(NamedTuple):
    """One of our tensors under another format's name.

    ``Entry("pooler/dense/kernel", "pooler.dense.weight", inputs=1, transposed=True)``
    """

    ours: str  # path in the nested dict
    theirs: str  # name, with {layer} where ours is stacked
    inputs: int = 0  # leading axes of ours that become rows of a matrix; 0: a vector
    transposed: bool = False  # their matrix is [outputs, inputs]
    vocabulary: bool = False  # the first axis is the vocabulary, padded here and not there


class Spec(NamedTuple):
    """Shape and type of a tensor in a file."""

    shape: tuple[int, ...]
    dtype: np.dtype


class TensorSource(Protocol):
    """A file of named tensors, read one at a time."""

    path: str

    @property
    def files(self) -> Sequence[Path]:
        """Every file that the tensors are in."""
        ...

    def specs(self) -> Mapping[str, Spec]:
        """Returns what is in the file, without reading the numbers."""
        ...

    def read(self, name: str) -> np.ndarray:
        """Returns one tensor."""
        ...


class Slot(NamedTuple):
    """One tensor of theirs, and the part of ours that it holds."""

    name: str
    shape: tuple[int, ...]
    entry: Entry
    layer: int | None
    rows: int | None  # of the vocabulary, without padding

    def take(self, ours: np.ndarray) -> np.ndarray:
        """Returns their tensor, cut out of our whole (stacked, padded) one: a view."""
        part = self._part(ours)
        matrix = part.reshape(self._matrix_shape(part.shape))
        return matrix.T if self.entry.transposed else matrix

    def put(self, ours: np.ndarray, theirs: np.ndarray) -> None:
        """Writes their tensor into its place in our whole one."""
        part = self._part(ours)
        part[...] = (theirs.T if self.entry.transposed else theirs).reshape(part.shape)

    def _part(self, ours: np.ndarray) -> np.ndarray:
        part = ours if self.layer is None else ours[self.layer]
        return part if self.rows is None else part[: self.rows]

    def _matrix_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        inputs = self.entry.inputs
        if inputs == 0:
            return (math.prod(shape),)
        return (math.prod(shape[:inputs]), math.prod(shape[inputs:]))


def expand(table: Sequence[Entry], ours: Params, *, vocab_size: int) -> list[Slot]:
    """Returns every tensor that another format keeps for a model of ours, in the table's order.

    Args:
        table: may also name tensors of heads that this model does not have.
        ours: nested dict of anything with a shape.
        vocab_size: without padding.

    Raises:
        ValueError: one of our tensors is not in the table, or stands in it twice.
    """
    shapes = {path: tuple(leaf.shape) for path, leaf in flatten(ours).items()}
    named = [entry.ours for entry in table]
    if forgotten := sorted(shapes.keys() - set(named)):
        raise ValueError(f"not in the table of names: {', '.join(forgotten)}")
    if len(set(named)) != len(named):
        raise ValueError("a tensor stands twice in the table of names")
    slots = []
    for entry in table:
        if entry.ours not in shapes:
            continue
        shape = shapes[entry.ours]
        stacked = entry.ours.startswith(STACKED)
        for layer in range(shape[0]) if stacked else [None]:
            rows = vocab_size if entry.vocabulary else None
            slot = Slot(entry.theirs.format(layer=layer), (), entry, layer, rows)
            # A broadcast array has the shape and no memory: the views compute the rest.
            empty = np.broadcast_to(np.zeros((), np.float32), shape)
            part = empty if layer is None else empty[layer]
            part = part if rows is None else part[:rows]
            theirs = slot._matrix_shape(part.shape)
            slots.append(slot._replace(shape=theirs[::-1] if entry.transposed else theirs))
    return slots


def read_params(
    source: TensorSource,
    slots: Sequence[Slot],
    ours: Params,
    *,
    ignored: Mapping[str, str],
) -> dict[str, Any]:
    """Reads a model out of another format's file, one tensor in memory beside it.

    Args:
        source: the file.
        slots: from `expand`.
        ours: nested dict of the shapes to fill. What pads the vocabulary stays zero.
        ignored: pattern of a name → why it is no part of the model.

    Returns:
        A nested dict of float32 arrays.

    Raises:
        UserError: a tensor is missing, not known, of another shape or not of a float type.
    """
    specs = source.specs()
    wanted = {slot.name: slot for slot in slots}
    for name in specs:
        if name not in wanted and reason_to_ignore(name, ignored) is None:
            near = did_you_mean(name, wanted)
            raise UserError(f"{source.path}: tensor {name} is not part of the model here{near}")
    for name, slot in wanted.items():
        if name not in specs:
            near = did_you_mean(name, specs)
            raise UserError(f"{source.path}: tensor {name} is missing; the model needs it{near}")
        found = specs[name]
        if found.dtype not in READABLE:
            allowed = ", ".join(map(str, READABLE))
            raise UserError(
                f"{source.path}: tensor {name} found type {found.dtype}, allowed: {allowed}"
            )
        if tuple(found.shape) != slot.shape:
            raise UserError(
                f"{source.path}: tensor {name} found shape {list(found.shape)}, the configuration "
                f"says {list(slot.shape)}"
            )
    arrays = {path: np.zeros(leaf.shape, np.float32) for path, leaf in flatten(ours).items()}
    for name, slot in wanted.items():
        slot.put(arrays[slot.entry.ours], source.read(name))
    return unflatten(arrays)


def their_tensors(params: Params, slots: Sequence[Slot]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields every tensor under the other format's name: views, so that none is held twice."""
    arrays = flatten(params)
    for slot in slots:
        yield slot.name, slot.take(np.asarray(arrays[slot.entry.ours]))


def reason_to_ignore(name: str, ignored: Mapping[str, str]) -> str | None:
    """Returns why a tensor is no part of the model, or None where it must be one."""
    for pattern, reason in ignored.items():
        if fnmatch.fnmatchcase(name, pattern):
            return reason
    return None


def flatten(nested: Params) -> dict[str, Any]:
    """``{"a": {"b": x}}`` → ``{"a/b": x}``."""
    return flatten_dict(nested, sep="/")


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """``{"a/b": x}`` → ``{"a": {"b": x}}``."""
    return unflatten_dict(flat, sep="/")
